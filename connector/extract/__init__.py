"""Pages, and from them listings and imports that are proven complete. Knows no HTTP library and no warehouse."""

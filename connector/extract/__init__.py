"""Read pages into listings and imports that are proven complete, without HTTP library and warehouse."""

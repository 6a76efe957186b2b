"""Load the settings of the source, for commands that call the service."""

from __future__ import annotations

from connector.cli.redaction import add_secret
from connector.errors import MissingSettingError
from connector.settings import Settings
from connector.source import configured_settings


def load_settings(pipeline_name: str) -> Settings:
    """Return the settings of `importer_source()` for a pipeline; from now on its secrets are redacted in the output."""
    settings = configured_settings(pipeline_name)
    add_secret(settings.access_token.get_secret_value())
    if settings.privacy_key is not None:
        add_secret(settings.privacy_key.get_secret_value())
    return settings


def settings_if_configured(pipeline_name: str) -> Settings | None:
    """Return the same, or None if a required setting is missing, for commands that need no service."""
    try:
        return load_settings(pipeline_name)
    except MissingSettingError:
        return None

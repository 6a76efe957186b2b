"""Provide SQL for analysts: fixed views and checks from `sql/`, and those generated from the data dictionary."""

from connector.reporting.views.statements import Statement, select, standing

__all__ = ["Statement", "select", "standing"]

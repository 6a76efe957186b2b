"""Commands that look after a warehouse: compare it with the service, write it anew, diagnose and repair it."""

"""`python -m connector` is `importer-sync`."""

from connector.cli.main import main

if __name__ == "__main__":
    main()

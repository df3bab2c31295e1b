"""`python -m crmctl` is the same program as `crmctl`."""

from crmctl.main import main

if __name__ == "__main__":
    main()

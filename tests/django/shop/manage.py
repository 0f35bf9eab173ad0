"""``python -m tests.django.shop.manage COMMAND``."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.django.shop.settings")
    execute_from_command_line(["manage.py", *sys.argv[1:]])

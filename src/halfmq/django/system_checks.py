"""What `manage.py check` says about the setting HALFMQ, and with ``--database`` about the tables."""

import sys
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register

from halfmq.django.configuration import configuration
from halfmq.django.database import created_by, missing_tables
from halfmq.django.process import make_client
from halfmq.django.tables import VENDORS
from halfmq.errors import UsageError


@register
def check_setting(**_: Any) -> list[CheckMessage]:
    """The setting can be read, a client can be made of it, and its databases can be used."""
    try:
        wanted = configuration()
    except UsageError as error:
        return [_wrong(error)]
    found: list[CheckMessage] = []
    try:
        make_client(wanted, answers_checks=False)  # no I/O: what is wrong would be seen by the first request that sends
    except (UsageError, TypeError) as error:  # TypeError: OPTIONS that there are not
        found.append(_wrong(error, "HALFMQ: "))
    for using in dict.fromkeys(wanted.databases):
        values = settings.DATABASES.get(using)
        if values is None:
            found.append(Error(f"HALFMQ['DATABASES'] names {using!r}, which DATABASES has not", id="halfmq.E002"))
        elif values.get("AUTOCOMMIT") is False:
            found.append(
                Error(
                    f"database {using!r} has AUTOCOMMIT off, so that atomic does not commit",
                    hint="mq.atomic needs Django's default",
                    id="halfmq.E003",
                )
            )
    return found


def _wrong(error: UsageError | TypeError, where: str = "") -> CheckMessage:
    """With the hint beside the text, where Django shows it, and not in it too."""
    hint = getattr(error, "hint", "")
    return Error(where + str(error).removesuffix(f" ({hint})"), hint=hint or None, id="halfmq.E001")


@register(Tags.database)
def check_tables(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """The tables exist. Django asks with `manage.py check --database default`, and before `manage.py migrate`: that creates them,
    and is told nothing. An Error would keep it from what is to be done. Django itself tells checks of no difference between the two.
    Where a missing table is to be an error: `manage.py check --database default --fail-level WARNING`.
    """
    from halfmq.django.database import connection_to

    try:
        wanted = configuration()
    except UsageError:
        return []
    found: list[CheckMessage] = []
    for using in set(databases or ()) & set(wanted.databases) & set(settings.DATABASES):
        vendor = connection_to(using).vendor
        if vendor not in VENDORS:
            found.append(Error(f"halfmq has no tables for {vendor}", id="halfmq.E004"))
        elif not _is_migrate() and (missing := missing_tables(using)):
            from django.core.checks import Warning as Warned

            found.append(
                Warned(
                    f"there is no table {', '.join(missing)} in database {using!r}",
                    hint=created_by(using),
                    id="halfmq.W001",
                )
            )
    return found


def _is_migrate() -> bool:
    """Whether this process is `manage.py migrate`, or `django-admin migrate`. ``call_command`` checks nothing unless it is told to."""
    return sys.argv[1:2] == ["migrate"]

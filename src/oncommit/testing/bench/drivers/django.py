"""Django on psycopg 3: models in an atomic block, a connection a thread, as in its servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from psycopg.conninfo import conninfo_to_dict

from oncommit.errors import ConfigError
from oncommit.testing.bench.drivers.psycopg import conninfo
from oncommit.testing.bench.loads import Adds, Transaction
from oncommit.testing.bench.place import Place
from oncommit.testing.bench.workload import Order

_SETTINGS = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}


@contextmanager
def writers(place: Place, count: int) -> Iterator[Sequence[Transaction]]:
    """Writers that are the same function: Django's connection belongs to the thread that asks for it."""
    transaction = _transaction_on(place)
    yield [transaction] * count


def _transaction_on(place: Place) -> Transaction:
    """Django is configured once a process, so this asks for a process without a configured one."""
    import django
    from django.conf import settings

    if settings.configured:
        msg = "Django is configured in this process already; the benchmark needs one of its own (oncommit bench write)"
        raise ConfigError(msg)
    parts = conninfo_to_dict(conninfo(place))
    named = {_SETTINGS[word]: str(parts.pop(word)) for word in list(parts) if word in _SETTINGS}
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **named, "OPTIONS": parts}}, USE_TZ=True
    )
    django.setup()
    from django.db import connection, models, transaction

    class Account(models.Model):  # type: ignore[misc]  # noqa: DJ008 - Django is untyped; never printed
        id = models.IntegerField(primary_key=True)
        balance = models.BigIntegerField()
        changed_at = models.DateTimeField()

        class Meta:
            app_label = "bench"
            managed = False
            db_table = "bench_account"

    class BenchOrder(models.Model):  # type: ignore[misc]  # noqa: DJ008 - the same
        id = models.BigAutoField(primary_key=True)
        account = models.IntegerField()
        cents = models.BigIntegerField()
        note = models.TextField()

        class Meta:
            app_label = "bench"
            managed = False
            db_table = "bench_order"

    now = models.functions.Now()

    def work(order: Order, adds: Adds | None) -> None:
        with transaction.atomic():
            BenchOrder.objects.create(account=order.account, cents=order.cents, note=order.note)
            Account.objects.filter(id=order.account).update(balance=models.F("balance") + order.cents, changed_at=now)
            if adds is not None:
                adds.add(connection, order.event())

    return work

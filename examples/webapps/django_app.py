"""Django in one file: the order and its saga are in the transaction of Django's own connection.

``ATALAIA_WORKFLOWS=examples.webapps.shop ATALAIA_AGENTS=examples.webapps.shop
python -m examples.webapps.django_app runserver``
"""

import sys
from typing import Any
from uuid import UUID

import django
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.db import connection, models, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST
from pydantic import ValidationError
from sqlalchemy import make_url

from examples.webapps import shop
from orchestration.handle import Handle
from orchestration.settings import settings as atalaia
from tasks.app import runtime


def database(location: str) -> dict[str, Any]:
    """Return how Django names the database at one of Atalaia's URLs."""
    url = make_url(location)
    if url.get_backend_name() == "sqlite":
        options = {"transaction_mode": "IMMEDIATE", "timeout": 30}
        return {
            "ENGINE": "django.db.backends.sqlite3", "NAME": url.database, "OPTIONS": options
        }  # fmt: skip
    return {
        "ENGINE": "django.db.backends.postgresql", "NAME": url.database, "USER": url.username,
        "PASSWORD": url.password, "HOST": url.host, "PORT": url.port,
    }  # fmt: skip


settings.configure(
    DATABASES={"default": database(atalaia().database)},
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["localhost", "127.0.0.1", "testserver"],
    USE_TZ=True,
)
django.setup()


class Order(models.Model):
    """An order, and the saga that delivers it."""

    number = models.IntegerField(primary_key=True)
    saga_id = models.UUIDField()

    class Meta:
        """Where Django keeps it."""

        app_label = "shop"
        db_table = "shop_orders"

    def __str__(self) -> str:
        """Show the number."""
        return f"order {self.number}"


def lay_table() -> None:
    """Make the app's own table; a project of several files has a migration for it."""
    if Order._meta.db_table not in connection.introspection.table_names():  # noqa: SLF001
        with connection.schema_editor() as editor:
            editor.create_model(Order)


@csrf_exempt
@require_POST
@transaction.atomic
def place(request: HttpRequest) -> HttpResponse:
    """Take an order."""
    try:
        asked = shop.Order.model_validate_json(request.body)
    except ValidationError as error:
        return HttpResponse(str(error), status=422)
    key = f"order-{asked.number}"
    handle = runtime().scheduler.start("order", asked, key=key, connection=connection)
    Order.objects.create(number=asked.number, saga_id=handle.saga_id)
    if asked.amount > shop.CREDIT:
        raise PermissionDenied("over the credit limit")
    return JsonResponse({"number": asked.number, "saga": handle.saga_id}, status=201)


@require_GET
def show(request: HttpRequest, number: int) -> HttpResponse:
    """Show how an order stands."""
    del request
    order = get_object_or_404(Order, number=number)
    saga = Handle(runtime().store, order.saga_id).result()
    return JsonResponse({"number": number, "state": saga.state, "results": saga.results})


@csrf_exempt
@require_POST
def bank_rings(request: HttpRequest, saga_id: UUID, step: str) -> HttpResponse:
    """Hear that the bank has news."""
    del request
    runtime().scheduler.hasten(saga_id, step, by="bank")
    return HttpResponse(status=204)


urlpatterns = [
    path("orders", place),
    path("orders/<int:number>", show),
    path("webhooks/bank/<uuid:saga_id>/<str:step>", bank_rings),
]
application = get_wsgi_application()

if __name__ == "__main__":
    lay_table()
    execute_from_command_line(sys.argv)

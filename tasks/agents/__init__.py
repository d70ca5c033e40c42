"""The agents of this installation. Add a module here to have its agents registered."""

from tasks.agents import cars, flights, hotels, mail, payments

__all__ = ["cars", "flights", "hotels", "mail", "payments"]

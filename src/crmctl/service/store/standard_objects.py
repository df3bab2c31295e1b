"""The objects every organisation starts with, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crmctl.service.store.attributes import NewAttribute


@dataclass(frozen=True)
class StandardAttribute:
    """`options` for a select, `target` (the slug of a standard object) for a reference."""

    name: str
    slug: str
    type: str
    is_required: bool = False
    is_unique: bool = False
    is_list: bool = False
    options: tuple[str, ...] = ()
    target: str | None = None

    def new(self, object_ids: Mapping[str, str]) -> NewAttribute:
        config: dict[str, Any] | None = None
        if self.options:
            config = {"options": list(self.options)}
        elif self.target:
            config = {"allowed_object_id": object_ids[self.target]}
        return NewAttribute(self.name, self.type, self.slug, self.is_required, self.is_unique, self.is_list, config)


@dataclass(frozen=True)
class StandardObject:
    plural_name: str
    singular_name: str
    description: str
    attributes: tuple[StandardAttribute, ...]


_PEOPLE = StandardObject(
    "People",
    "Person",
    "Everybody the organization knows",
    (
        StandardAttribute("Name", "name", "name"),
        StandardAttribute("Email", "email", "email", is_unique=True),
        StandardAttribute("Phone", "phone", "phone_number"),
        StandardAttribute("Company", "company", "reference", target="companies"),
        StandardAttribute("Job title", "job_title", "text"),
        StandardAttribute("Birthday", "birthday", "date"),
        StandardAttribute("Address", "address", "address"),
        StandardAttribute("Tags", "tags", "list"),
        StandardAttribute("Subscribed", "subscribed", "checkbox"),
        StandardAttribute("Status", "status", "select", options=("new", "contacted", "qualified", "customer", "inactive")),
        StandardAttribute("Score", "score", "number"),
        StandardAttribute("Notes", "notes", "text"),
    ),
)

_COMPANIES = StandardObject(
    "Companies",
    "Company",
    "Organizations that people work for and deals are made with",
    (
        StandardAttribute("Name", "name", "text", is_required=True),
        StandardAttribute("Domain", "domain", "text", is_unique=True),
        StandardAttribute(
            "Industry",
            "industry",
            "select",
            options=(
                "agriculture",
                "education",
                "energy",
                "finance",
                "healthcare",
                "manufacturing",
                "public",
                "retail",
                "services",
                "technology",
                "other",
            ),
        ),
        StandardAttribute("Employees", "employees", "number"),
        StandardAttribute("Annual revenue", "annual_revenue", "currency"),
        StandardAttribute("Headquarters", "headquarters", "address"),
        StandardAttribute("Phone", "phone", "phone_number"),
        StandardAttribute("Founded", "founded", "date"),
        StandardAttribute("Customer", "is_customer", "checkbox"),
        StandardAttribute("Tags", "tags", "list"),
        StandardAttribute("Notes", "notes", "text"),
    ),
)

_DEALS = StandardObject(
    "Deals",
    "Deal",
    "Business that may be won",
    (
        StandardAttribute("Name", "name", "text", is_required=True),
        StandardAttribute("Amount", "amount", "currency"),
        StandardAttribute("Stage", "stage", "select", options=("lead", "qualified", "proposal", "negotiation", "won", "lost")),
        StandardAttribute("Close date", "close_date", "date"),
        StandardAttribute("Company", "company", "reference", target="companies"),
        StandardAttribute("Contact", "contact", "reference", target="people"),
        StandardAttribute("Probability", "probability", "number"),
        StandardAttribute("Won", "won", "checkbox"),
        StandardAttribute("Tags", "tags", "list"),
        StandardAttribute("Notes", "notes", "text"),
    ),
)

STANDARD_OBJECTS: dict[str, StandardObject] = {"people": _PEOPLE, "companies": _COMPANIES, "deals": _DEALS}

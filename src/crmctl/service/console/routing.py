"""Every address of the console and the portal, and the front door. The portal has the webhook pages alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from crmctl.service.console import (
    administration,
    api_reference,
    files,
    record_changes,
    record_import,
    record_list,
    record_page,
    reports,
    sign_in,
    webhooks,
    workflows,
)
from crmctl.service.console.noun_pages import noun_routes
from crmctl.service.console.nouns import NOUNS, PORTAL_NOUNS
from crmctl.service.console.pages import FILE_FORM, LARGE_FORM, NavigationLink, Pages, form_at, page_at
from crmctl.service.console.visits import CONSOLE, PORTAL, Redirect
from crmctl.service.context import Context
from crmctl.service.http.endpoint import NamedRoute
from crmctl.service.store.members import MemberRole

NOBODY, VIEWER, MEMBER, ADMIN = MemberRole.NOBODY, MemberRole.VIEWER, MemberRole.MEMBER, MemberRole.ADMIN

RECORDS, RECORD, WEBHOOK = "/records/{slug}", "/records/{slug}/{recordId:uuid}", "/webhooks/{id:uuid}"
REPORT_RUN = "/reports/{id:uuid}/runs/{runId:uuid}"

OWN_PAGES = (
    page_at("", administration.overview),
    page_at("/search", record_list.search, is_slow=True),
    page_at("/search/lookup", record_list.search_while_typing, is_slow=True),
    page_at("/records", record_list.first_object),
    page_at(RECORDS, record_list.list_page, is_slow=True),
    form_at(RECORDS, record_page.create_record, MEMBER, form_limit=LARGE_FORM),
    page_at(f"{RECORDS}/new", record_page.new_record, MEMBER),
    page_at(f"{RECORDS}/csv", record_list.download, is_slow=True),
    page_at(f"{RECORDS}/lookup", record_list.look_up, is_slow=True),
    form_at(f"{RECORDS}/views", record_list.save_view, VIEWER, back=record_list.list_to_save),
    form_at(f"{RECORDS}/views/delete", record_list.delete_view, VIEWER),
    form_at(
        f"{RECORDS}/selected",
        record_changes.change_selected,
        MEMBER,
        in_transaction=False,
        form_limit=LARGE_FORM,
        back=record_changes.ask_again,
    ),
    page_at(f"{RECORDS}/deleted", record_changes.show_deleted, MEMBER, is_slow=True),
    form_at(f"{RECORDS}/deleted", record_changes.restore_deleted, MEMBER),
    page_at(f"{RECORDS}/changed", record_changes.changed_page, MEMBER),
    form_at(f"{RECORDS}/changed", record_changes.undo, MEMBER),
    page_at(f"{RECORDS}/import", record_import.ask_for_file, MEMBER),
    form_at(f"{RECORDS}/import", record_import.upload, MEMBER, in_transaction=False, form_limit=FILE_FORM, back=record_import.ask_for_file),
    page_at(f"{RECORDS}/import/columns", record_import.columns_page, MEMBER, is_slow=True),
    form_at(f"{RECORDS}/import/columns", record_import.check_or_import, MEMBER, in_transaction=False, back=record_import.columns_page),
    page_at(f"{RECORDS}/import/failed", record_import.download_failed, MEMBER),
    page_at(RECORD, record_page.show_record),
    page_at(f"{RECORD}/history", record_page.show_history),
    form_at(f"{RECORD}/activities", record_page.add_activity, MEMBER, back=record_page.show_record),
    page_at(f"{RECORD}/edit", record_page.edit_record, MEMBER),
    form_at(f"{RECORD}/edit", record_page.change_record, MEMBER, form_limit=LARGE_FORM),
    page_at(f"{RECORD}/delete", record_page.ask_to_delete, MEMBER),
    form_at(f"{RECORD}/delete", record_page.delete_record, MEMBER, back=record_page.ask_to_delete),
    page_at("/files", files.show_files, is_slow=True),
    form_at("/files", files.upload, MEMBER, in_transaction=False, form_limit=FILE_FORM, back=files.show_files),
    form_at("/reports/{id:uuid}/run", reports.start_run, MEMBER, in_transaction=False),
    page_at(REPORT_RUN, reports.show_run, is_slow=True),
    page_at(f"{REPORT_RUN}/csv", reports.download, is_slow=True),
    page_at("/workflows/{id:uuid}/runs/{runId:uuid}", workflows.show_run),
    page_at("/health", administration.show_health, ADMIN, is_slow=True),
    page_at("/health/backup", administration.download_backup, ADMIN),
    form_at("/health/backup", administration.back_up, ADMIN, in_transaction=False),
    page_at("/sign-in", sign_in.show_sign_in, NOBODY),
    form_at("/sign-in", sign_in.sign_in, NOBODY, in_transaction=False),
    page_at("/password", sign_in.show_password, NOBODY),
    form_at("/password", sign_in.set_password, NOBODY, in_transaction=False, back=sign_in.show_password),
    page_at("/account", sign_in.show_account),
    form_at("/account/password", sign_in.change_password, VIEWER, in_transaction=False, back=sign_in.show_account),
    page_at("/device", sign_in.ask_for_code),
    form_at("/device", sign_in.show_login, VIEWER, in_transaction=False),
    form_at("/device/answer", sign_in.answer_login, VIEWER, in_transaction=False),
)

SHARED_PAGES = (
    page_at(f"{WEBHOOK}/deliveries/{{deliveryId:uuid}}", webhooks.show_delivery, ADMIN),
    form_at(f"{WEBHOOK}/deliveries/{{deliveryId:uuid}}/replay", webhooks.replay, ADMIN),
    page_at(f"{WEBHOOK}/replay", webhooks.range_form, ADMIN),
    form_at(f"{WEBHOOK}/replay", webhooks.replay_range, ADMIN, in_transaction=False, back=webhooks.range_form),
    form_at("/sign-out", sign_in.sign_out, VIEWER),
    page_at("/{rest:path}", sign_in.nowhere),
)
"""Pages of both areas. The last one answers unknown addresses."""


def areas(context: Context, document: Callable[[], api_reference.Document]) -> tuple[Pages, Pages]:
    """Return the console and the portal; `document` returns the OpenAPI document."""
    own = [route for noun in NOUNS for route in noun_routes(noun)]
    own += [page_at("/api", partial(api_reference.show_calls, document)), page_at("/api/{tag}", partial(api_reference.show_noun, document))]
    links = [NavigationLink(noun.group, noun.path, noun.plural, noun.needs) for noun in NOUNS if noun.group]
    links += [
        NavigationLink("Work", "/files", "Files"),
        NavigationLink("Administration", "/health", "Health", ADMIN),
        NavigationLink("Administration", "/api", "API"),
    ]
    of_portal = [page_at("", lambda _tx, _visit: Redirect("/webhooks"))]
    of_portal += [route for noun in PORTAL_NOUNS for route in noun_routes(noun)]
    return Pages(context, CONSOLE, [*OWN_PAGES, *own, *SHARED_PAGES], links), Pages(context, PORTAL, [*of_portal, *SHARED_PAGES])


def page_routes(context: Context, document: Callable[[], api_reference.Document]) -> list[NamedRoute]:
    """Return the front door with the static files, the console and the portal."""
    console, portal = areas(context, document)
    return [*sign_in.front_door(context), *console.served(), *portal.served()]

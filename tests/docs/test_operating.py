"""Programs accept the files of the operators' page, its commands work, and its figures exist."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from crmctl.models import jsontext
from crmctl.service.context import ServiceSettings
from crmctl.service.store.webhooks import FIGURES
from tests.support.authority import Authority
from tests.support.cli import CRMCTL, run_crmctl, start_crmctl
from tests.support.patience import PATIENCE
from tests.support.postgres import Server
from tests.support.programs import find_program
from tests.support.service import ServiceProcess, service_process
from tests.support.sources import ROOT

PAGE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")


def blocks(language: str, containing: str) -> list[str]:
    """Return the page's blocks in a language that contain a text."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    chosen = [text for name, text in found if name == language and containing in text]
    assert chosen, f"no {language} block with {containing}"
    return chosen


def variables() -> dict[str, str]:
    """Return the variables of the environment file, as systemd reads it."""
    [text] = blocks("sh", "# /etc/crmctl.env")
    lines = [line.partition("=") for line in text.splitlines() if line and not line.startswith("#")]
    return {name: value.strip('"') for name, _, value in lines}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def proxy(folder: Path, service: str) -> Iterator[tuple[str, Authority]]:
    """Run nginx with the page's server block, adapted to this machine's ports, certificate and service."""
    authority, port = Authority(folder), free_port()
    authority.server("crm.example.com")
    [certificate] = [path for path in folder.glob("*.pem") if path != authority.bundle]
    [server] = blocks("nginx", "server {")
    for theirs, ours in (
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("/etc/ssl/crm.example.com.pem", str(certificate)),
        ("/etc/ssl/crm.example.com.key", str(certificate)),
        ("http://127.0.0.1:8787", service),
    ):
        assert theirs in server
        server = server.replace(theirs, ours)
    places = "".join(f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    head = f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{places}"
    (folder / "nginx.conf").write_text(f"{head}{server}}}\n")
    process = subprocess.Popen([str(find_program("nginx")), "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        yield f"https://127.0.0.1:{port}", authority
    finally:
        process.terminate()
        process.wait(PATIENCE)


def ask(url: str, authority: Authority, path: str, **headers: str) -> httpx.Response:
    """Send a request as a client of crm.example.com, once the proxy listens."""
    with httpx.Client(transport=httpx.HTTPTransport(verify=authority.trusted(), retries=12), trust_env=False) as client:
        asked = {"Host": "crm.example.com", **headers}
        return client.get(f"{url}{path}", headers=asked, extensions={"sni_hostname": "crm.example.com"})


@pytest.mark.needs("nginx")
def test_the_proxy_of_the_page_passes_on_tls_ids_and_addresses(tmp_path: Path) -> None:
    """The service starts from the page's environment file, with other data and ports."""
    said, port = variables(), free_port()
    assert {"CRMCTL_SERVE_DATA", "CRMCTL_SERVE_PUBLIC_URL", "CRMCTL_SERVE_METRICS"} <= said.keys()
    (tmp_path / "nginx").mkdir()
    with (
        service_process(tmp_path / "data", "--port", str(port), env=said) as service,
        proxy(tmp_path / "nginx", f"http://127.0.0.1:{port}") as (url, authority),
    ):
        assert service.base_url == "https://crm.example.com"
        answer = ask(url, authority, "/api/v1/objects", Authorization=f"Bearer {service.key}")
        assert answer.status_code == 200, answer.text
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
        page = ask(url, authority, "/console")
        assert (page.status_code, "Sign in" in page.text) == (403, True)
        assert "Secure" in page.headers["set-cookie"]
        assert service.stop() == 0
        [logged] = [jsontext.loads(line) for line in service.stderr.splitlines() if answer.headers["x-request-id"] in line]
        assert (logged["path"], logged["status"]) == ("/api/v1/objects", 200)


@pytest.mark.needs("systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    [unit] = blocks("ini", "/etc/systemd/system/crmctl.service")
    assert "/opt/crmctl/bin/crmctl serve" in unit
    path = tmp_path / "crmctl.service"
    path.write_text(unit.replace("/opt/crmctl/bin/crmctl", str(CRMCTL)), encoding="utf-8")
    run = subprocess.run([str(find_program("systemd-analyze")), "verify", str(path)], capture_output=True, text=True, check=False)
    assert [line for line in run.stderr.splitlines() if "crmctl.service" in line] == []
    assert run.returncode == 0, run.stderr


def container() -> dict[str, str]:
    """Return the last instruction of each kind of the Containerfile."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Containerfile").read_text(encoding="utf-8"))
    return dict(line.partition(" ")[::2] for line in text.splitlines() if line)


def test_the_container_serves_as_its_user_from_its_volume_and_stops_on_a_signal(tmp_path: Path) -> None:
    """Run its command and health check with its variables; only folder and port differ. `.ci/image.py` carries out the rest."""
    steps = container()
    said = dict(re.findall(r"(CRMCTL_SERVE_\w+)=(\S+)", steps["ENV"]))
    command = [*jsontext.loads(steps["ENTRYPOINT"]), *jsontext.loads(steps["CMD"])]
    assert steps["USER"] == "10001:10001"
    assert f"--owner=10001 --group=10001 --mode=700 {steps['VOLUME']}" in steps["RUN"], "the user can write to the volume"
    assert said["CRMCTL_SERVE_DATA"] == steps["VOLUME"]
    assert said["CRMCTL_SERVE_PORT"] == steps["EXPOSE"] == str(ServiceSettings().port)
    data = tmp_path / "data"
    env = said | {"CRMCTL_SERVE_DATA": str(data), "CRMCTL_SERVE_PORT": "0"}
    process = start_crmctl(*command[1:], env=env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with ServiceProcess(process, jsontext.loads(process.stdout.readline()), command, tmp_path) as service:
        health = jsontext.loads(steps["HEALTHCHECK"].partition("CMD ")[2])
        port = {"CRMCTL_SERVE_PORT": service.base_url.rpartition(":")[2]}
        subprocess.run([sys.executable, *health[1:]], env=port, check=True)
        assert service.stop() == 0
    assert subprocess.run([sys.executable, *health[1:]], env=port, stderr=subprocess.DEVNULL, check=False).returncode != 0
    assert (data / "service.db").exists()


def test_the_commands_of_backup_and_restore_work(tmp_path: Path) -> None:
    with service_process(tmp_path / "data") as service, service.client() as client:
        people = client.get("/api/v1/objects").json()["objects"][0]["id"]
        made = client.post(f"/api/v1/objects/{people}/records", json={"data": {"email": "ada@example.com"}}).json()
        lines = [line for text in blocks("sh", "crmctl service") for line in text.splitlines()]
        lines += re.findall(r"`(crmctl service [^`]* --dry-run|crmctl service (?:requests|audit)[^`]*)`", PAGE)
        ran = [line for line in lines if "s3://" not in line and line.startswith("crmctl service ")]
        assert len(ran) >= 6
        for line in ran:
            words = [word.replace("/backups", str(tmp_path)).replace("./", f"{tmp_path}/") for word in shlex.split(line)]
            run_crmctl(*words[1:], env={"CRMCTL_SERVE_DATA": str(tmp_path / "data")}).ok()
        assert [line.split()[1:] for line in lines if line.startswith("crmctl serve ")] == [["serve", "--data", "./restored"]]
    with service_process(tmp_path / "restored", key=service.key) as again, again.client() as client:
        assert client.get(f"/api/v1/objects/{people}/records/{made['id']}").json()["data"] == made["data"]


@pytest.mark.needs("createdb")
def test_the_database_of_the_page_serves(postgres: Server, tmp_path: Path) -> None:
    lines = blocks("sh", "createdb")[0].splitlines()
    url = urlsplit(postgres.create_database())
    words = shlex.split(lines[0])
    env = {"PGHOST": url.hostname or "", "PGPORT": str(url.port or 5432), "PGUSER": url.username or "", "PGPASSWORD": url.password or ""}
    subprocess.run([str(find_program(words[0])), *words[1:]], env={**os.environ, **{k: v for k, v in env.items() if v}}, check=True)
    [said] = re.findall(r"(CRMCTL_SERVE_\w+)=postgresql://", "\n".join(lines))
    with service_process(tmp_path / "data", env={said: url._replace(path="/crm").geturl()}) as service, service.client() as client:
        assert client.get("/readyz").status_code == 200
        assert not (tmp_path / "data" / "service.db").exists()
    postgres.drop_database(url._replace(path="/crm").geturl())


def test_the_figures_to_watch_are_there_and_sizes_say_how_they_were_measured() -> None:
    own = {"crm_request_log_dropped", "crm_requests_total"} | {f"crm_{name}" for name in FIGURES}
    named = set(re.findall(r"`(crm_\w+)", PAGE))
    assert len(named) > 8
    assert named - own == set()
    sizes = PAGE.partition("## Size")[2]
    programs = set(re.findall(r"`(benchmarks/\w+\.py)", sizes))
    assert len(programs) >= 2
    assert [name for name in programs if not (ROOT / name).exists()] == []

"""Certificates for tests, of an authority of their own."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Issued(NamedTuple):
    """PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates, by openssl."""

    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl here: apt-get install openssl")
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.certificate = directory / "authority.pem"
        self._key = directory / "authority.key"
        _openssl(
            "req",
            "-x509",
            *_KEY,
            "-days",
            "9",
            "-subj",
            "/CN=authority of tests",
            "-keyout",
            self._key,
            "-out",
            self.certificate,
        )

    def issue(self, name: str, *hosts: str, ends: str = "") -> Issued:
        """A certificate for ``hosts``, each as in a subjectAltName; ``ends``: when it ends, as YYYYMMDDHHMMSSZ."""
        issued = Issued(self.directory / f"{name}.pem", self.directory / f"{name}.key")
        request, extensions = self.directory / f"{name}.csr", self.directory / f"{name}.txt"
        _openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", issued.key, "-out", request)
        extensions.write_text(f"subjectAltName={','.join(hosts or ('IP:127.0.0.1', 'DNS:localhost'))}\n")
        if ends:
            self._issue_until(ends, request, extensions, issued.certificate)
        else:
            signed = ("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-days", "9")
            _openssl("x509", "-req", "-in", request, *signed, "-extfile", extensions, "-out", issued.certificate)
        return issued

    def _issue_until(self, ends: str, request: Path, extensions: Path, certificate: Path) -> None:
        """``openssl x509`` of Debian 12 cannot say when a certificate ends."""
        for file, text in (("index.txt", ""), ("serial", "01\n")):
            (self.directory / file).write_text(text)
        settings = self.directory / "ca.cnf"
        settings.write_text(
            f"[ca]\ndefault_ca=d\n[d]\ndir={self.directory}\nnew_certs_dir=$dir\ndatabase=$dir/index.txt\nserial=$dir/serial\n"
            "default_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n"
        )
        _openssl(
            "ca", "-batch", "-config", settings, "-cert", self.certificate, "-keyfile", self._key, "-in", request,
            "-out", certificate, "-extfile", extensions, "-startdate", "20200101000000Z", "-enddate", ends, "-notext",
        )  # fmt: skip


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))

"""Sets up the federation of `compose.yaml`: two heart hospitals train, a third one is onboarded later.

    python federation.py prepare FOLDER     # once: certificates, keys, plan, app, the sites' records, tokens
                                            # (--shared: with the helpers of compose.shared.yaml)
    python federation.py register FOLDER    # tells the SuperLink, as soon as it answers, whom to let in

`FOLDER/secrets` is for whoever runs all of it on one machine, to try it out: in a real federation each site
makes its own key, and the certificate's key goes offline (docs/deployment.md).
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

sys.path.insert(0, str(Path(__file__).parent))
import sign_app

SITES = ("longbeach", "budapest")
LATER = "cleveland"
HELPERS = ("board", "registry")
PLAN = """\
preset = "best"
participants = 2
clients_per_round = 2
future_clients = 0
coefficients = 14
context = "shares"
context_share = 0.05
prior = "context"
channel = "direct"
rounds = 3
epsilon = 8.0
evaluate_every = 0
"""
SHARED = {'"best"': '"shared"', 'channel = "direct"': "threshold = 2\ncolluding = 1\nhelpers = 2"}
"""What the plan says instead where sites share the noise."""
YEAR = datetime.timedelta(days=365)
Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def program(*command: str, cwd: Path | None = None) -> str:
    """The output of a program that lies beside this Python or on the path."""
    beside = Path(sys.executable).with_name(command[0])
    done = subprocess.run(
        [str(beside) if beside.exists() else command[0], *command[1:]],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def write(path: Path, content: bytes | str) -> None:
    """A file that only its owner reads."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def certificates(secrets: Path, server: str) -> None:
    """`ca.crt`, and `server.crt` with `server.key`, for the server's name and for loopback."""
    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    now = datetime.datetime.now(datetime.UTC)

    def certificate(name: str, of: ec.EllipticCurvePrivateKey, *, ca: bool) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "our federation")]))
            .public_key(of.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + (10 * YEAR if ca else YEAR))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(of.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
            )
        )
        if ca:
            uses = [False] * 5
            usage = x509.KeyUsage(
                *uses, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False
            )
            builder = builder.add_extension(usage, critical=True)
        else:
            loopback = ipaddress.ip_address("127.0.0.1")
            names = [x509.DNSName("localhost"), x509.DNSName(server), x509.IPAddress(loopback)]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM)

    write(secrets / "ca.crt", certificate("our federation", authority, ca=True))
    write(secrets / "server.crt", certificate(server, key, ca=False))
    write(secrets / "server.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def ssh_key(path: Path, key: Key) -> None:
    """A key pair as `ssh-keygen` writes it: `path` and `path.pub`."""
    write(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write(path.with_name(f"{path.name}.pub"), public + b"\n")


def site_keys(folder: Path) -> str:
    """Keys of sites and helpers of shared noise, and the tables of their public halves."""
    tables = ""
    for role, names in (("site", SITES), ("helper", HELPERS)):
        tables += f"[{role}s]\n"
        for name in names:
            file = str(folder / "secrets" / f"{name}.{role}")
            made = json.loads(program("sottovoce", role, "key", file, "--name", name, "--json"))
            tables += f'{name} = "{made["public"]}"\n'
    return tables


def prepare(folder: Path, server: str, data: str, port: int, *, shared: bool) -> None:
    """Everything but what needs a running SuperLink; `data` is where the server sees `FOLDER/server`."""
    if (folder / "secrets").exists():
        raise SystemExit(f"{folder} is prepared already: remove it to begin anew")
    secrets, home, hospitals = folder / "secrets", folder / "server", folder / "hospitals"
    certificates(secrets, server)
    program("sottovoce", "data", "copy", "heart", str(hospitals))
    plan, keys = PLAN, tuple[str, ...]()
    if shared:
        for ours, theirs in SHARED.items():
            plan = plan.replace(ours, theirs)
        write(home / "keys.toml", site_keys(folder))
        keys = ("--keys", "keys.toml")
    write(home / "plan.toml", plan)
    shutil.copy(hospitals / "records.toml", home)
    app = ("--plan", "plan.toml", "--records", "records.toml", *keys, "--out", "app")
    program("sottovoce", "federate", *app, "--run-directory", f"{data}/run", cwd=home)
    agreement = home / "app" / "sottovoce_app" / "agreement.toml"
    shutil.copy(secrets / "ca.crt", home)
    address = f'address = "127.0.0.1:{port}"\nroot-certificates = "{data}/ca.crt"\n'
    write(home / "flwr" / "config.toml", f'[superlink]\ndefault = "here"\n\n[superlink.here]\n{address}')

    reader = ed25519.Ed25519PrivateKey.generate()  # somebody who has read the app for the sites
    ssh_key(secrets / "reader", reader)
    program("flwr", "build", "--app", "app", cwd=home)
    [built] = home.glob("*.fab")
    write(home / "signature.json", json.dumps(sign_app.sign(secrets / "reader", built)))
    for node in (*SITES, *HELPERS) if shared else SITES:
        ssh_key(secrets / f"{node}.key", ec.generate_private_key(ec.SECP384R1()))
        write(home / "nodes" / f"{node}.pub", (secrets / f"{node}.key.pub").read_bytes())
        write(folder / node / "trusted.yaml", sign_app.trust([secrets / "reader.pub"]))
        for file in (agreement, secrets / "ca.crt"):
            shutil.copy(file, folder / node)
    if shared:
        agreed = json.loads(program("sottovoce", "site", "agreement", str(agreement), "--json"))
        write(folder / "helpers.env", f"HELPERS={','.join(agreed['helpers'].values())}\n")
    for site in (*SITES, LATER):
        (folder / site).mkdir(exist_ok=True, mode=0o700)
        for file in (secrets / "ca.crt", hospitals / "records.toml", hospitals / f"{site}.csv"):
            shutil.copy(file, folder / site)
    shutil.rmtree(hospitals)
    (home / "run").mkdir(mode=0o700)
    for name, command in ((LATER, "serve"), ("watch", "watch")):
        made = program("sottovoce", command, str(home / "run"), "--new-token", name, "--json")
        write(secrets / f"{name}.token", json.loads(made)["token"] + "\n")


def flwr(*command: str) -> str:
    """What a command of Flower's says, as soon as the SuperLink answers; it is waited for."""
    beside = Path(sys.executable).with_name("flwr")
    words, told = [str(beside) if beside.exists() else "flwr", *command, "here"], float("-inf")
    while True:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        said = " ".join((done.stdout + done.stderr).split())
        if done.returncode == 0 or "already" in said.lower():
            return said
        if time.monotonic() - told >= 60:
            told = time.monotonic()
            print(f"waiting: the SuperLink does not answer ({said[-200:]})", flush=True)
        time.sleep(2)


def register(home: Path) -> None:
    """Has the SuperLink hand out the app with its signature, and then lets the nodes in."""
    flwr("supernode", "list")
    sign_app.attach(home / "superlink.db", [json.loads((home / "signature.json").read_text())])
    print("the SuperLink hands out the signed app", flush=True)
    for node in sorted((home / "nodes").glob("*.pub")):
        flwr("supernode", "register", str(node))
        print(f"{node.stem} is registered", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="The federation of compose.yaml.")
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare", help="certificates, keys, plan, app, records, tokens")
    preparing.add_argument("folder", type=Path)
    preparing.add_argument("--server", default="server", help="the name by which sites reach the server")
    preparing.add_argument("--data", default="/data", help="where the server sees FOLDER/server")
    preparing.add_argument("--port", type=int, default=8701, help="the SuperLink's, on loopback")
    preparing.add_argument("--shared", action="store_true", help="with noise that sites share, and helpers")
    registering = commands.add_parser("register", help="tell the SuperLink whom to let in")
    registering.add_argument("folder", type=Path)
    given = parser.parse_args()
    os.umask(0o077)
    if given.command == "prepare":
        prepare(given.folder.absolute(), given.server, given.data, given.port, shared=given.shared)
    else:
        register(given.folder.absolute())


if __name__ == "__main__":
    main()

"""Lets clients run only the app that they have read: signatures for SuperNodes with `--trusted-entities`.

    python sign_app.py sign KEY APP.fab > signature.json       # whoever has read the app; KEY: Ed25519
    python sign_app.py attach superlink.db signature.json ...  # the server
    python sign_app.py trust KEY.pub ... > trusted.yaml        # the client

A SuperNode checks the signature over the app's bytes with the keys that its own operator gave it; what the
server says decides nothing. Flower hands out signatures only with apps from its Hub, and forgets them when
the same app is submitted from a folder, so `attach` has the SuperLink's database put them back by itself.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sqlite3
import sys
import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

# Flower writes the table `fab` at each submission; what is written last is what SuperNodes get.
SCHEMA = """
CREATE TABLE IF NOT EXISTS sottovoce_signature (fab_hash TEXT PRIMARY KEY, verifications TEXT NOT NULL);
CREATE TRIGGER IF NOT EXISTS sottovoce_signature_insert AFTER INSERT ON fab
WHEN NEW.fab_hash IN (SELECT fab_hash FROM sottovoce_signature) BEGIN
    UPDATE fab SET verifications = (SELECT verifications FROM sottovoce_signature
        WHERE fab_hash = NEW.fab_hash) WHERE fab_hash = NEW.fab_hash;
END;
CREATE TRIGGER IF NOT EXISTS sottovoce_signature_update AFTER UPDATE ON fab
WHEN NEW.fab_hash IN (SELECT fab_hash FROM sottovoce_signature) BEGIN
    UPDATE fab SET verifications = (SELECT verifications FROM sottovoce_signature
        WHERE fab_hash = NEW.fab_hash) WHERE fab_hash = NEW.fab_hash;
END;
"""


def key_id(public: str) -> str:
    """The name of a public key, the same for everybody: it follows from the key."""
    return f"fpk_{hashlib.sha256(public.encode()).hexdigest()[:32]}"


def trust(keys: list[Path]) -> str:
    """What `--trusted-entities` reads. With no key in it a SuperNode would check nothing."""
    public = [" ".join(key.read_text().split()[:2]) for key in keys]
    for key, text in zip(keys, public, strict=True):
        if not text.startswith("ssh-ed25519 "):
            raise SystemExit(f"{key} is not an Ed25519 public key: make one with ssh-keygen -t ed25519")
    return "".join(f"{key_id(text)}: '{text}'\n" for text in public)


def sign(key: Path, app: Path) -> dict[str, str | int]:
    """A signature over the time and the SHA-256 of the app, in the form that Flower's SuperNodes check."""
    private = load_ssh_private_key(key.read_bytes(), password=None)
    if not isinstance(private, Ed25519PrivateKey):
        raise SystemExit(f"{key} is not an Ed25519 key: make one with ssh-keygen -t ed25519")
    digest, now = hashlib.sha256(app.read_bytes()), int(time.time())
    signature = private.sign(now.to_bytes(8, "big") + digest.digest())
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return {
        "fab_hash": digest.hexdigest(),
        "public_key_id": key_id(public),
        "signed_at": now,
        "signature": base64.urlsafe_b64encode(signature).decode(),
    }


def attach(database: Path, signatures: list[dict[str, str | int]]) -> None:
    """Puts the signatures beside the app that they are for, now and at each submission."""
    if not database.exists():
        raise SystemExit(f"{database} does not exist: start the SuperLink with --database first")
    connection = sqlite3.connect(database, timeout=30.0)
    with connection:
        connection.executescript(SCHEMA)
        for one in signatures:
            app = one["fab_hash"]
            known = connection.execute(
                "SELECT verifications FROM sottovoce_signature WHERE fab_hash = ?", (app,)
            ).fetchone()
            # SuperNodes take a non-empty licence for "this server can hand out signatures".
            all_of_them = json.loads(known[0]) if known else {"valid_license": "Valid"}
            content = {"signed_at": one["signed_at"], "signature": one["signature"]}
            all_of_them[one["public_key_id"]] = json.dumps(content)
            stored = json.dumps(all_of_them)
            connection.execute("INSERT OR REPLACE INTO sottovoce_signature VALUES (?, ?)", (app, stored))
            connection.execute("UPDATE fab SET verifications = ? WHERE fab_hash = ?", (stored, app))
    connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Signatures for SuperNodes with --trusted-entities.")
    commands = parser.add_subparsers(dest="command", required=True)
    signing = commands.add_parser("sign", help="sign an app that you have read")
    signing.add_argument("key", type=Path)
    signing.add_argument("app", type=Path)
    attaching = commands.add_parser("attach", help="let a SuperLink hand out signatures")
    attaching.add_argument("database", type=Path)
    attaching.add_argument("signatures", type=Path, nargs="+")
    trusting = commands.add_parser("trust", help="write the file for --trusted-entities")
    trusting.add_argument("keys", type=Path, nargs="+")
    given = parser.parse_args()
    if given.command == "sign":
        json.dump(sign(given.key, given.app), sys.stdout, indent=2)
        print()
    elif given.command == "trust":
        print(trust(given.keys), end="")
    else:
        attach(given.database, [json.loads(path.read_text()) for path in given.signatures])


if __name__ == "__main__":
    main()

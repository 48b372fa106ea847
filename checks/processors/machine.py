"""Runs a program on a PC that Bochs emulates, for instructions that qemu lacks; its CD has this machine's own files."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from checks import ROOT
from fork import process

PROGRAMS = ("bochs", "busybox", "cpio", "genisoimage", "modprobe")
SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin"
LOADER = (Path("/usr/lib/ISOLINUX/isolinux.bin"), Path("/usr/lib/syslinux/modules/bios/ldlinux.c32"))
# Those of a CD in Bochs's PC.
MODULES = ("ata_piix", "sr_mod", "isofs")
ENDED = "The program ended with status "

# Where Bochs is built with a debugger, it waits for the command to begin.
BOCHS = """\
cpu: {cpu}, ips=150000000
memory: guest=2048, host=2048
ata0-master: type=cdrom, path={folder}/cd.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev={folder}/printed
display_library: term
romimage: file=$BXSHARE/BIOS-bochs-latest
vgaromimage: file=$BXSHARE/VGABIOS-lgpl-latest
log: {folder}/log
"""
BEGIN = "c\n"
# Linux would use what Bochs has but in part: five levels of pages and short copies. The rest saves time.
LINUX = """\
default linux
label linux
  kernel vmlinuz
  append initrd=initrd rdinit={folder}/init console=ttyS0 quiet loglevel=0 no5lvl clearcpuid=fsrm nosmp nokaslr \
mitigations=off tsc=reliable init_on_alloc=0 transparent_hugepage=never
"""
INIT = """\
#!{busybox} sh
busybox() {{ {busybox} "$@"; }}
{modules}
busybox mount -t devtmpfs none /dev
while ! busybox mount -t iso9660 /dev/sr0 /mnt; do busybox sleep 1; done 2>/dev/null
busybox mount -t proc none /mnt/proc
busybox mount -t tmpfs none /mnt/tmp
busybox mount --bind /dev /mnt/dev
busybox chroot /mnt {busybox} sh /job
echo "{ended}$?"
busybox sleep 1
busybox poweroff -f
"""


def program(name: str) -> Path | None:
    found = shutil.which(name) or shutil.which(name, path=SYSTEM)
    return Path(found) if found else None


def kernel() -> Path | None:
    """The newest kernel that is installed with its modules."""
    images = Path("/boot").glob("vmlinuz-*")
    return max((path for path in images if Path("/lib/modules", release(path)).is_dir()), default=None)


def release(image: Path) -> str:
    return image.name.removeprefix("vmlinuz-")


def missing(cpu: str) -> str:
    """What was not found of all that the emulation of a processor takes."""
    lacking = [name for name in PROGRAMS if not program(name)] + [path.name for path in LOADER if not path.exists()]
    if not kernel():
        lacking.append("a kernel and its modules in /boot and /lib/modules")
    if not lacking:
        known = process.attempt(["bochs", "--help", "cpu"])
        model = cpu.partition(",")[0].removeprefix("model=")
        lacking += [] if model in known.stdout + known.stderr else [f"a Bochs that knows {model}"]
    return ", ".join(lacking)


def links(path: Path) -> list[Path]:
    """A file with every link on the way to it."""
    return [path, *(links(path.parent / path.readlink()) if path.is_symlink() else ())]


def libraries(objects: Iterable[Path]) -> dict[Path, Path]:
    """The shared libraries that these files load, by the paths under which they are looked for."""
    told = process.attempt(["ldd", *objects]).stdout
    return {Path(name): Path(name).resolve() for name in re.findall(r"(?:=> |^\t)(/\S+) \(0x", told, re.MULTILINE)}


def files(site: Path, busybox: Path) -> dict[Path, Path]:
    """What a program of ours takes: files and whole folders, by the paths that they have for it."""
    python = links(Path(sys.executable))
    standard = Path(sysconfig.get_path("stdlib"))
    others = ("site-packages", "dist-packages", "test")
    whole = [path for path in standard.iterdir() if path.name not in others]
    whole += [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "build"]
    whole += [Path(sys.prefix), site]
    loading = [busybox, *python, *standard.glob("lib-dynload/*.so"), *Path(torch.__file__).parent.glob("lib/*.so")]
    single = {path: path for path in (busybox, *python)} | libraries(loading)
    return {path: path for path in whole} | {
        there: here for there, here in single.items() if not any(map(there.is_relative_to, whole))
    }


def modules(image: Path) -> list[Path]:
    """The files of the modules, each after those that it needs."""
    command = [program("modprobe") or "", "-S", release(image), "--show-depends"]
    told = "".join(process.run([*command, name], "modprobe failed") for name in MODULES)
    return list(dict.fromkeys(map(Path, re.findall(r"^insmod (\S+)", told, re.MULTILINE))))


def archive(paths: Iterable[Path]) -> bytes:
    """These files as Linux unpacks them at its start, with the folders that they lie in."""
    every = {parent for path in (*paths, Path("/dev"), Path("/mnt")) for parent in (path, *path.parents)}
    names = "\n".join(str(path.relative_to("/")) for path in sorted(every - {Path("/")}))
    command = ["cpio", "--quiet", "--create", "--format", "newc", "--dereference"]
    return subprocess.run(command, input=names.encode(), capture_output=True, cwd="/", check=True).stdout


def write_cd(folder: Path, command: Sequence[str], variables: Mapping[str, str]) -> None:
    """Writes cd.iso into a folder. It starts Linux, which runs the command in the project's root and switches off."""
    image, busybox = kernel(), program("busybox")
    assert image and busybox, "asked after `missing`"
    exports = (f"export {name}={shlex.quote(value)}\n" for name, value in variables.items() if name.isidentifier())
    (folder / "job").write_text(f"{''.join(exports)}cd {shlex.quote(str(ROOT))}\nexec {shlex.join(command)}\n")
    (folder / "isolinux.cfg").write_text(LINUX.format(folder=folder))
    (folder / "empty").mkdir()
    needed, init = modules(image), folder / "init"
    inserted = "\n".join(f"busybox insmod {path}" for path in needed)
    init.write_text(INIT.format(busybox=busybox, modules=inserted, ended=ENDED))
    init.chmod(0o755)
    (folder / "initrd").write_bytes(archive([init, busybox, *needed, *libraries([busybox])]))
    inside = {path.name: path for path in (*LOADER, *(folder / name for name in ("job", "isolinux.cfg", "initrd")))}
    inside |= {"vmlinuz": image} | dict.fromkeys(("dev", "proc", "tmp"), folder / "empty")
    inside |= {str(there): here for there, here in files(Path(variables["TORCH_FORK"]), busybox).items()}
    lines = [f"{there}/={here}\n" if here.is_dir() else f"{there}={here}\n" for there, here in inside.items()]
    (folder / "paths").write_text("".join(lines))
    boot = ["-b", LOADER[0].name, "-no-emul-boot", "-boot-load-size", "4", "-boot-info-table"]
    layout: list[str | Path] = [
        "-quiet",
        "-R",
        "-D",
        "-iso-level",
        "4",
        "-graft-points",
        "-path-list",
        folder / "paths",
    ]
    process.run(["genisoimage", *boot, *layout, "-o", folder / "cd.iso"], "genisoimage failed")


def run(
    cpu: str, command: Sequence[str], variables: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """How a program ended on this processor, and what it printed; after so many seconds the PC is switched off."""
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        folder = Path(name)
        write_cd(folder, command, variables)
        (folder / "bochsrc").write_text(BOCHS.format(cpu=cpu, folder=folder))
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["bochs", "-q", "-f", folder / "bochsrc"],
                input=BEGIN,
                capture_output=True,
                text=True,
                env={**variables, "TERM": "vt100"},
                timeout=seconds,
                check=False,
                preexec_fn=process.die_with_parent,
            )
        printed = folder / "printed"
        text = printed.read_text(errors="replace").replace("\r\n", "\n") if printed.exists() else ""
    output, told, status = text.partition(ENDED)
    return subprocess.CompletedProcess(command, int(status) if told else 0, output, output)

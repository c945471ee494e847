"""C extensions built in a folder: for checkouts in which none was built, and with other options."""

import subprocess
import sysconfig
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader


def built_extension(source, folder, *options):
    """Return the module that is built of a C file."""
    built = folder / f"{source.stem}.abi3.so"
    command = ["cc", "-O2", "-shared", "-fPIC", *options, f"-I{sysconfig.get_paths()['include']}", str(source), "-o"]
    subprocess.run([*command, str(built)], check=True)
    loader = ExtensionFileLoader(source.stem, str(built))
    module = module_from_spec(spec_from_loader(source.stem, loader))
    loader.exec_module(module)
    return module

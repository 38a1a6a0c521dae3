"""What `coterie new` writes: a package of plugins, or one file for `-p`.

`templates/kinds` has the one-file example of every kind, which documentation shows too. A package is made of
the same files. Nothing here imports the rest of Coterie.
"""

from coterie.scaffold.files import (
    ScaffoldError as ScaffoldError,
    write_files as write_files,
    write_folder as write_folder,
)
from coterie.scaffold.kinds import KINDS as KINDS, with_needed as with_needed
from coterie.scaffold.names import Names as Names, file_names as file_names, package_names as package_names
from coterie.scaffold.package import left_out as left_out, one_file as one_file, package as package

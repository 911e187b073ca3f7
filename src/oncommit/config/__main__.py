"""``python -m oncommit.config PAGE…``: make the tables of the page on settings new; without a page, print them."""

import sys
from pathlib import Path

from oncommit.config.page import page_part, refresh

if len(sys.argv) == 1:
    sys.stdout.write(page_part())
for name in sys.argv[1:]:
    file = Path(name)
    file.write_text(refresh(file.read_text(encoding="utf-8")), encoding="utf-8")

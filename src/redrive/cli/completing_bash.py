"""How bash asks. It breaks words at colons, of which every URL has one, so that it must tell the line itself."""

from __future__ import annotations

import os

from click.shell_completion import BashComplete, split_arg_string

LINE = "COMP_LINE"
HERE = "\0"
"""Where the cursor is; nothing from the environment can have it."""

SCRIPT = """\
%(complete_func)s() {
    local IFS=$'\\n' response completion type value cut=
    local line="${COMP_LINE:0:COMP_POINT}"
    local word="${line##*[[:blank:]]}"

    # The answer takes the place of what follows the last colon, except in quotes.
    if [[ $COMP_WORDBREAKS == *:* && $word != *[\\'\\"]* ]]; then
        cut="${word%%"${word##*:}"}"
    fi
    response=$(env COMP_LINE="$line" %(complete_var)s=bash_complete $1 2>/dev/null)

    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"

        if [[ $type == 'dir' ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=("${value#"$cut"}")
        fi
    done
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class Bash(BashComplete):
    source_template = SCRIPT

    def get_completion_args(self) -> tuple[list[str], str]:
        if LINE not in os.environ:
            return super().get_completion_args()  # a shell that has the script of an earlier version
        *words, last = split_arg_string(os.environ[LINE] + HERE)
        return words[1:], last.removesuffix(HERE)

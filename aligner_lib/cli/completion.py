"""`aligner completion SHELL`: the script with which a shell completes commands, options, settings and their values."""

from __future__ import annotations

import os

from aligner_lib.errors import UserError

VARIABLE = "_ALIGNER_COMPLETE"  # typer's name for a program called aligner

# Bash splits words at an equals sign. The script therefore takes the words from the line, and inserts only the value of an
# answer `key=value`.
BASH = """\
_aligner_completion() {
    local line=${COMP_LINE:0:COMP_POINT} words current
    read -ra words <<< "$line"
    [[ $line == *' ' ]] && words+=('')
    current=${words[${#words[@]}-1]}
    mapfile -t COMPREPLY < <(COMP_WORDS=$line COMP_CWORD=$((${#words[@]} - 1)) _ALIGNER_COMPLETE=complete_bash "${words[0]}" 2>/dev/null)
    [[ $current == *=* && $COMP_WORDBREAKS == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"${current%%=*}="}")
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o default -F _aligner_completion aligner
"""
# zsh has compdef only after compinit, which some start-up files never call.
ZSH = """\
(( $+functions[compdef] )) || { autoload -U compinit && compinit -i; }
_aligner_completion() {
    local -a answers
    answers=("${(@f)$(COMP_WORDS="${words[1,$CURRENT]}" COMP_CWORD=$((CURRENT - 1)) _ALIGNER_COMPLETE=complete_bash $words[1] 2>/dev/null)}")
    if [[ -z $answers[1] ]]; then
        _files
    elif [[ $answers[1] == *= ]]; then
        compadd -S '' -- $answers
    else
        compadd -- $answers
    fi
}
compdef _aligner_completion aligner
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH}


def script_of(shell: str) -> str:
    """Return the script for a shell. Raises UserError for an unknown shell."""
    if shell not in SCRIPTS:
        raise UserError(f"there is no completion for {shell!r}, only for {' and '.join(SCRIPTS)}")
    return SCRIPTS[shell]


def answer_a_shell() -> None:
    """Prepare the command line for a shell's completion request, if there is a request."""
    if VARIABLE in os.environ:
        from typer.completion import completion_init

        completion_init()

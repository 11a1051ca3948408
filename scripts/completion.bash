# Bash completion for fsdp. Subcommands, flags and their choices are read from the command's own help, so that this file
# cannot fall behind it.
_fsdp()
{
    local current=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[0]} words
    if ((COMP_CWORD == 1)); then
        words=$("$command" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z0-9-]*\)  .*/\1/p')
        mapfile -t COMPREPLY < <(compgen -W "$words --help --version" -- "$current")
    elif [[ $current == -* ]]; then
        words=$("$command" "${COMP_WORDS[1]}" --help 2>/dev/null | grep -o -- '--[a-z0-9][a-z0-9_-]*' | sort -u)
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    fi
}
complete -o filenames -F _fsdp fsdp

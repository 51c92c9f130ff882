# bash completion for berth. The program knows its own commands and names; this only asks it.
_berth()
{
    local candidate
    COMPREPLY=()
    # ":" breaks words in bash, but not in "berth cp name:path".
    local words cword
    if declare -F _get_comp_words_by_ref >/dev/null; then
        _get_comp_words_by_ref -n : words cword
    else
        words=("${COMP_WORDS[@]}")
        cword=$COMP_CWORD
    fi
    local current=${words[cword]}
    while IFS= read -r candidate; do
        case $candidate in
        @files)
            compopt -o filenames
            while IFS= read -r candidate; do COMPREPLY+=("$candidate"); done < <(compgen -f -- "$current")
            ;;
        @folders)
            compopt -o filenames
            while IFS= read -r candidate; do COMPREPLY+=("$candidate"); done < <(compgen -d -- "$current")
            ;;
        *:)
            compopt -o nospace
            COMPREPLY+=("$candidate")
            ;;
        *)
            COMPREPLY+=("$candidate")
            ;;
        esac
    done < <("${words[0]}" complete "${words[@]:1:cword}" 2>/dev/null)
    if declare -F __ltrim_colon_completions >/dev/null; then
        __ltrim_colon_completions "$current"
    fi
}
complete -F _berth berth

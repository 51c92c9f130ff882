#compdef berth
# zsh completion for berth. The program knows its own commands and names; this only asks it.
_berth()
{
    local candidate
    local -a names prefixes
    for candidate in "${(@f)$($words[1] complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        case $candidate in
        '') ;;
        @files) _files ;;
        @folders) _files -/ ;;
        *:) prefixes+=("$candidate") ;;
        *) names+=("$candidate") ;;
        esac
    done
    (( $#names )) && compadd -a names
    (( $#prefixes )) && compadd -S '' -a prefixes
    return 0
}
_berth "$@"

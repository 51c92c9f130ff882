# fish completion for berth. The program knows its own commands and names; this only asks it.
function __berth_complete
    set -l words (commandline -opc) (commandline -ct)
    for candidate in (command $words[1] complete $words[2..-1] 2>/dev/null)
        switch $candidate
            case @files
                __fish_complete_path (commandline -ct)
            case @folders
                __fish_complete_directories (commandline -ct)
            case '*'
                echo $candidate
        end
    end
end
complete -c berth -f -a '(__berth_complete)'

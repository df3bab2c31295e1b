# fish completion of crmctl. crmctl computes the candidates, see `crmctl __complete`.

function __crmctl_complete
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    set -l lines ($words[1] __complete $words[2..-1] "$typed" 2>/dev/null </dev/null)
    if test "$lines[1]" = files
        __fish_complete_path (string replace -r -- '^--[^=]*=' '' "$typed")
    else if set -q lines[2]
        string join \n -- $lines[2..-1]
    end
end

complete -c crmctl -e
complete -c crmctl -f -a '(__crmctl_complete)'

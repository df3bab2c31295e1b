# bash completion of crmctl (bash 3.2 and newer). crmctl computes the candidates, see `crmctl __complete`.

_crmctl() {
    local mode= candidate
    COMPREPLY=()
    while IFS= read -r candidate; do
        if [[ -z $mode ]]; then
            mode=:$candidate
        else
            COMPREPLY[${#COMPREPLY[@]}]=$candidate
        fi
    done < <("${COMP_WORDS[0]/#\~/$HOME}" __complete --line "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null </dev/null)
    # readline completes file names itself when there is no other candidate; bash 3.2 has no compopt and always does
    if [[ $mode == :files ]]; then
        compopt +o nospace 2>/dev/null
    else
        compopt +o default 2>/dev/null
    fi
    return 0
}

# crmctl adds the blank behind a complete word: bash 3.2 cannot choose for each answer
complete -o default -o nospace -F _crmctl crmctl

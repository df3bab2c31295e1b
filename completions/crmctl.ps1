# PowerShell completion of crmctl (5.1 and newer). crmctl computes the candidates, see `crmctl __complete`.

Register-ArgumentCompleter -Native -CommandName crmctl -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)

    # One argument that is never empty: PowerShell 5 drops empty ones. Blanks that the syntax tree leaves out are put back.
    $length = $cursorPosition - $commandAst.Extent.StartOffset
    $line = $commandAst.ToString().PadRight($length, ' ').Substring(0, $length)
    $program = $commandAst.CommandElements[0].ToString()
    $mode, $rows = @(& $program __complete --line $line 2>$null)
    if ($mode -eq 'files') {
        return [System.Management.Automation.CompletionCompleters]::CompleteFilename(($wordToComplete -replace '^--[^=]*=', ''))
    }
    foreach ($row in $rows) {
        $value, $help = $row -split "`t", 2
        $text = if ($value.Contains(' ')) { "'" + $value + "'" } else { $value }
        $shown = if ($help) { $help } else { $value }
        [System.Management.Automation.CompletionResult]::new($text, $value, 'ParameterValue', $shown)
    }
}

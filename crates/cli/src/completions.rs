//! `squall completions` and `squall man`: shell completions and man pages for an installation.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;
use clap_mangen::Man;
use squall_yard::error::{Result, context};

use crate::output::say;

/// Print the completions for a shell
///
/// For bash: squall completions bash > ~/.local/share/bash-completion/completions/squall
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Print the man page, or write a page for each command to a folder
#[derive(Args, Debug)]
pub(crate) struct Manual {
    /// An existing folder, such as ~/.local/share/man/man1
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// Prints the completions for all commands.
pub(crate) fn completions(args: &Completions, mut command: clap::Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "squall", &mut script);
    say(String::from_utf8_lossy(&script).trim_end());
    Ok(())
}

/// Prints the main page, or writes all pages.
///
/// # Errors
/// A page cannot be written.
pub(crate) fn manual(args: &Manual, command: clap::Command) -> Result<()> {
    // A page is the same on every machine, without commit and kernels; `help` has no page.
    let command = command.long_version(None).disable_help_subcommand(true);
    if let Some(folder) = &args.folder {
        let failed = || format!("cannot write the pages to {}", folder.display());
        return clap_mangen::generate_to(command, folder)
            .map_err(|error| context(&failed())(error));
    }
    let mut page = Vec::new();
    let rendered = Man::new(command).render(&mut page);
    rendered.map_err(context("man page"))?;
    say(String::from_utf8_lossy(&page).trim_end());
    Ok(())
}

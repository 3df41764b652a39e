//! What an installation uses: completions, man pages and the version.

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{json, squall};

mod common;

fn stdout(args: &[&str]) -> String {
    let output = squall(args);
    assert!(output.status.success(), "{args:?}");
    assert!(output.stderr.is_empty(), "{args:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn every_shell_has_completions_for_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = stdout(&["completions", shell]);
        for word in ["perf", "server", "doctor", "listen", "completions"] {
            assert!(script.contains(word), "{word} for {shell}");
        }
    }
    assert_eq!(squall(&["completions", "tcl"]).status.code(), Some(2));
}

#[test]
fn bash_completes_commands_and_options() {
    let bash = |script: &str| Command::new("bash").args(["--norc", "-c", script]).output();
    if bash("true").is_err() {
        eprintln!("bash is not installed here, not checked");
        return;
    }
    let completions = stdout(&["completions", "bash"]);
    let complete = |words: &str, last: usize| {
        let ask = format!(
            "COMP_WORDS=({words}); COMP_CWORD={last}; COMP_LINE='{words}'
             _squall squall \"${{COMP_WORDS[last]}}\" \"${{COMP_WORDS[{last} - 1]}}\"
             echo \"${{COMPREPLY[@]}}\"",
        )
        .replace("[last]", &format!("[{last}]"));
        let output = bash(&format!("{completions}\n{ask}")).expect("bash runs");
        String::from_utf8(output.stdout).expect("text")
    };
    assert_eq!(complete("squall doc", 1), "doctor\n");
    assert_eq!(complete("squall perf se", 2), "server\n");
    assert_eq!(complete("squall perf server --lis", 3), "--listen\n");
}

#[test]
fn every_command_has_a_man_page_and_pages_are_the_same_everywhere() {
    let page = stdout(&["man"]);
    assert!(page.contains(".TH squall 1"), "{page}");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("man1");
    fs::create_dir_all(&folder).expect("a folder");
    let path = folder.to_str().expect("text");
    assert_eq!(stdout(&["man", path]), "");
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect("a page");
    assert_eq!(read("squall.1").trim_end(), page.trim_end());
    assert!(read("squall-perf-server.1").contains("\\-\\-listen"));
    assert!(read("squall-bench-protect.1").contains("\\-\\-suite"));
    for name in ["squall.1", "squall-doctor.1"] {
        // It names neither the machine's kernels nor a commit.
        assert!(!read(name).contains("AES-128-GCM "), "{name}");
        assert!(!read(name).contains("commit "), "{name}");
    }
    let refused = squall(&["man", "/nowhere/at/all"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("/nowhere/at/all"));
}

#[test]
fn the_long_version_names_commit_library_and_kernels() {
    let short = stdout(&["-V"]);
    assert_eq!(short, format!("squall {}\n", env!("CARGO_PKG_VERSION")));
    let long = stdout(&["--version"]);
    assert!(long.starts_with(&short), "{long}");
    assert!(
        long.contains("\nTLS      rustls with aws-lc-rs\n"),
        "{long}"
    );
    for choice in json(&["doctor", "--json"])["choices"]
        .as_array()
        .expect("rows")
    {
        let text = |key: &str| choice[key].as_str().expect("text").to_owned();
        let expected = format!("{} {}", text("suite"), text("kernel"));
        assert!(long.contains(&expected), "{expected} in {long}");
    }
    // In a working tree of squall: the commit that was checked out at build time.
    let git = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if let Some(git) = git
        .ok()
        .filter(|git| git.status.success() && root.join(".git").exists())
    {
        let commit = String::from_utf8(git.stdout).expect("text");
        assert!(long.contains(&format!("commit   {commit}")), "{long}");
    }
}

//! The example in C, compiled without a warning and linked to the static and to the shared library.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// System libraries that the static library needs: `rustc --print native-static-libs`.
const SYSTEM_LIBRARIES: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

/// Where cargo put the libraries: next to this test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

/// Runs a program; returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Compiles the example to a program with this name, with these arguments for the linker.
fn compile(name: &str, link: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or("cc".into()));
    cc.args([
        "-std=c11",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
    ])
    .arg("-I")
    .arg(root.join("include"))
    .arg(root.join("examples/seal_and_open.c"))
    .arg("-o")
    .arg(&program)
    .args(link);
    run(&mut cc);
    program
}

fn check(program: &Path) {
    let said = run(&mut Command::new(program));
    assert!(
        said.starts_with("sealed and opened: AES-128-GCM by "),
        "{said}"
    );
    // Memory errors and leaks, if valgrind is installed.
    if Command::new("valgrind").arg("--version").output().is_ok() {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--quiet", "--leak-check=full", "--error-exitcode=9"]);
        run(valgrind.arg(program));
    }
}

#[test]
fn the_example_runs_with_the_static_library() {
    let library = libraries().join("libsquall_protect.a");
    let mut link = vec![library.to_str().unwrap()];
    link.extend(SYSTEM_LIBRARIES);
    check(&compile("seal_and_open_static", &link));
}

#[test]
fn the_example_runs_with_the_shared_library() {
    let folder = libraries();
    let folder = folder.to_str().unwrap();
    let (search, run_time) = (format!("-L{folder}"), format!("-Wl,-rpath,{folder}"));
    check(&compile(
        "seal_and_open_shared",
        &[&search, &run_time, "-lsquall_protect"],
    ));
}

//! Tests that need their own network: a shaped link, a route that refuses. Such a test runs its
//! binary again, alone in a fresh network namespace, and does its work there.
#![allow(dead_code, reason = "every test file uses a part")]
#![allow(unreachable_pub, reason = "shared by several test crates")]

use std::process::{Command, Stdio};

/// Set in the inner run, to the test's name.
const INSIDE: &str = "SQUALL_TEST_INSIDE";
/// Set where namespaces are known to be unavailable.
const WITHOUT: &str = "SQUALL_WITHOUT_NAMESPACES";

/// Creates a network namespace, runs the shell commands `setup` in it, and then the test `name`.
/// Returns whether this is the inner run, that is, whether to do the work.
///
/// # Panics
/// Namespaces cannot be created here, the setup fails, or the inner run fails.
pub fn inside(name: &str, setup: &str) -> bool {
    if std::env::var_os(INSIDE).is_some_and(|test| test == name) {
        return true;
    }
    if std::env::var_os(WITHOUT).is_some() {
        eprintln!("NOT TESTED: {name} needs a network namespace, and {WITHOUT} is set");
        return false;
    }
    // As root, or else as root of a user namespace.
    let makes = |flags: &[&str]| {
        let made = Command::new("unshare").args(flags).arg("true").status();
        made.is_ok_and(|status| status.success())
    };
    let candidates: [&[&str]; 2] = [&["--net"], &["--net", "--user", "--map-root-user"]];
    let Some(flags) = candidates.into_iter().find(|flags| makes(flags)) else {
        panic!(
            "{name} needs a network namespace, and unshare(1) cannot make one here; set {WITHOUT}=1 to go on without"
        );
    };
    let script = format!("set -e\nip link set lo up\n{setup}\nexec \"$0\" \"$@\"");
    let own = std::env::current_exe().expect("the test's own path");
    let run = Command::new("unshare")
        .args(flags)
        .args(["sh", "-c", &script])
        .arg(own)
        .args(["--exact", name, "--nocapture", "--include-ignored"])
        .env(INSIDE, name)
        .stderr(Stdio::inherit())
        .output()
        .expect("unshare(1) just worked");
    let output = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success(),
        "{name} failed in its namespace: {output}"
    );
    // A run that finds no test of this name succeeds, too.
    assert!(
        output.contains("1 passed"),
        "there is no test {name}: {output}"
    );
    false
}

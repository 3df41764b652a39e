//! Compiles the glue, and links the library that the system has.

fn main() {
    println!("cargo:rerun-if-changed=src/glue.c");
    println!("cargo:rustc-link-lib=dylib=IPSec_MB");
    cc::Build::new()
        .file("src/glue.c")
        .opt_level(3)
        .compile("squall_peers_ipsec_mb_glue");
}

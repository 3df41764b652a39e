//! BoringSSL, OpenSSL and ipsec-mb: built by cargo into shared objects next to this program,
//! loaded, and called through their table.

use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr::NonNull;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use squall_peers_table::{
    AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305, ENTRY, Entry, MASK_LEN, Table,
};
use squall_protect::SAMPLE_LEN;

use super::super::args::{Name, Suite};
use super::super::material;
use super::super::packets::HEADER_LEN;
use super::{Entrant, OneByOne, Peer};

/// Builds if necessary, and loads; an error gives the reason in one line. `source` is the package
/// that provides the library, if it is not the system's.
pub(crate) fn entrant(name: Name, member: &str, source: Option<&str>) -> Result<Entrant, String> {
    let table = load(&build(name, member)?)?;
    // SAFETY: the table's functions give static strings.
    let (version, kernel) = unsafe { (text((table.version)()), text((table.kernel)())) };
    Ok(Entrant {
        name,
        version: match source {
            Some(source) => format!("{version} ({})", super::package(source)),
            None => version,
        },
        kernel,
        expand: Box::new(move |suite| {
            let peer = SharedObject::expand(table, suite)?;
            Some(Box::new(OneByOne(peer)))
        }),
    })
}

/// # Safety
///
/// `text` is a string that ends with a zero.
unsafe fn text(text: *const c_char) -> String {
    // SAFETY: as promised.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// Makes cargo bring the shared object up to date, in this program's target folder.
fn build(name: Name, member: &str) -> Result<PathBuf, String> {
    let program =
        std::env::current_exe().map_err(|error| format!("where is this program: {error}"))?;
    // TARGET/PROFILE/squall-peers
    let target = (program.ancestors().nth(2)).ok_or("this program lies in no target folder")?;
    let file = format!("lib{}.so", member.replace('-', "_"));
    let shared_object = target.join("release").join(file);
    if !shared_object.exists() {
        eprintln!("building {}: minutes, the first time", name.text());
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--release", "--package", member, "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .stdin(Stdio::null());
    // What `cargo run` tells this program about its package does not apply to the other one.
    for (key, _) in std::env::vars_os() {
        let told = key.to_string_lossy();
        if told.starts_with("CARGO_PKG_") || told.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(key);
        }
    }
    let output = (cargo.output()).map_err(|error| format!("cargo does not start: {error}"))?;
    if output.status.success() {
        Ok(shared_object)
    } else {
        Err(reason(&String::from_utf8_lossy(&output.stderr)))
    }
}

/// The informative line of a failed build: the message of a panic in a build script, or else the
/// first error.
fn reason(stderr: &str) -> String {
    let mut lines = stderr.lines().map(str::trim);
    let error =
        (lines.clone().find(|line| line.starts_with("error"))).unwrap_or("the build failed");
    let panic = lines
        .find(|line| line.contains("panicked at"))
        .and_then(|_| lines.next());
    match panic {
        Some(panic) => format!("{error} {panic}; `peers/setup` installs what the build needs"),
        None => format!("{error}; `peers/setup` installs what the build needs"),
    }
}

fn load(shared_object: &Path) -> Result<&'static Table, String> {
    // Its names stay its own.
    let flags = RTLD_NOW | RTLD_LOCAL;
    // SAFETY: loading runs the library's initialisers, which these libraries intend to be run that
    // way.
    let library = unsafe { Library::open(Some(shared_object), flags) }
        .map_err(|error| format!("it does not load: {error}"))?;
    // SAFETY: the function has that type where it has that name.
    let table = unsafe {
        let entry = (library.get::<Entry>(ENTRY)).map_err(|error| error.to_string())?;
        entry()
    };
    // Never unloaded: the table, and what threads of the library keep, live as long as the process.
    std::mem::forget(library);
    // SAFETY: a table that lives as long as the library; the size is its first field in every
    // version of it.
    let size = unsafe { table.cast::<usize>().read() };
    if size != size_of::<Table>() {
        return Err("it was built for another version of this program".to_owned());
    }
    // SAFETY: as above, and of this program's layout.
    Ok(unsafe { &*table })
}

/// Expanded keys on the other side of a table.
struct SharedObject {
    table: &'static Table,
    keys: NonNull<c_void>,
}

impl SharedObject {
    fn expand(table: &'static Table, suite: Suite) -> Option<Self> {
        let id = match suite {
            Suite::Aes128Gcm => AES_128_GCM,
            Suite::Aes256Gcm => AES_256_GCM,
            Suite::ChaCha20Poly1305 => CHACHA20_POLY1305,
        };
        let (key, header_key) = (material::key(suite), material::header_key(suite));
        // SAFETY: both keys have the suite's length, the vector has `NONCE_LEN` bytes.
        let keys =
            unsafe { (table.expand)(id, key.as_ptr(), material::IV.as_ptr(), header_key.as_ptr()) };
        let keys = NonNull::new(keys)?;
        Some(Self { table, keys })
    }
}

impl Drop for SharedObject {
    fn drop(&mut self) {
        // SAFETY: from `expand`, freed once.
        unsafe { (self.table.free)(self.keys.as_ptr()) }
    }
}

impl Peer for SharedObject {
    #[inline]
    fn seal(&mut self, packet: &mut [u8], number: u64) -> bool {
        let (bytes, len) = (packet.as_mut_ptr(), packet.len());
        // SAFETY: an exclusive packet with a header of `HEADER_LEN` bytes and room for a tag, due
        // to `Packets`.
        unsafe { (self.table.seal)(self.keys.as_ptr(), bytes, HEADER_LEN, len, number) }
    }

    #[inline]
    fn open(&mut self, packet: &mut [u8], number: u64) -> bool {
        let (bytes, len) = (packet.as_mut_ptr(), packet.len());
        // SAFETY: an exclusive packet with a header of `HEADER_LEN` bytes and a tag, due to
        // `Packets`.
        unsafe { (self.table.open)(self.keys.as_ptr(), bytes, HEADER_LEN, len, number) }
    }

    #[inline]
    fn mask(&mut self, sample: &[u8; SAMPLE_LEN]) -> Option<[u8; 5]> {
        let mut mask = [0; MASK_LEN];
        // SAFETY: sample and mask have the lengths that the table asks for.
        let done =
            unsafe { (self.table.mask)(self.keys.as_ptr(), sample.as_ptr(), mask.as_mut_ptr()) };
        done.then_some(mask)
    }
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn a_failed_build_is_reported_in_one_line() {
        let stderr = "   Compiling x v1.0.0\nerror: failed to run custom build command for `x`\n\nCaused by:\n\
                      process didn't exit successfully\n  thread 'main' panicked at build.rs:1:1:\n  no cmake here\n";
        assert_eq!(
            reason(stderr),
            "error: failed to run custom build command for `x` no cmake here; `peers/setup` installs what the build needs"
        );
        assert_eq!(
            reason("error[E0001]: x\nmore"),
            "error[E0001]: x; `peers/setup` installs what the build needs"
        );
    }
}

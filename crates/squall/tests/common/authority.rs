//! Certificates of a private authority, as PEM files.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]
#![allow(unreachable_pub, reason = "shared by several test crates")]

use std::path::PathBuf;

/// A folder with `ca.pem`, and `NAME.pem` and `NAME.key` for each name; it is removed on drop.
pub struct Folder {
    pub path: PathBuf,
}

impl Folder {
    pub fn new(test: &str, names: &[&str]) -> Self {
        let path = std::env::temp_dir().join(format!("squall-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap();
        std::fs::write(path.join("ca.pem"), root.pem()).unwrap();
        let authority = rcgen::Issuer::new(params, key);
        for name in names {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
            let chain = params.signed_by(&key, &authority).unwrap();
            std::fs::write(path.join(format!("{name}.pem")), chain.pem()).unwrap();
            std::fs::write(path.join(format!("{name}.key")), key.serialize_pem()).unwrap();
        }
        Self { path }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

//! Where the programs are.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The programs under test.
#[derive(Debug, Clone)]
pub struct Binaries {
    /// `fsserver`.
    pub server: PathBuf,
    /// `fsclient`.
    pub client: PathBuf,
}

impl Binaries {
    /// `LEASEFS_FSSERVER` and `LEASEFS_FSCLIENT` where they are set; else what a build
    /// of this workspace, in the profile and target directory of the running test,
    /// leaves (it is built now).
    ///
    /// # Panics
    /// When the build fails.
    pub fn get() -> &'static Self {
        static FOUND: OnceLock<Binaries> = OnceLock::new();
        FOUND.get_or_init(Self::find)
    }

    /// A program that is built along with this one.
    ///
    /// # Panics
    /// If this one has no path.
    pub fn beside(name: &str) -> PathBuf {
        profile_folder().join(name)
    }

    fn find() -> Self {
        let given = |name| env::var_os(name).map(PathBuf::from);
        if let (Some(server), Some(client)) = (given("LEASEFS_FSSERVER"), given("LEASEFS_FSCLIENT"))
        {
            return Self { server, client };
        }
        let folder = profile_folder();
        build(&folder);
        Self {
            server: folder.join("fsserver"),
            client: folder.join("fsclient"),
        }
    }
}

/// `TARGET/PROFILE`, from `TARGET/PROFILE/deps/TEST` or `TARGET/PROFILE/PROGRAM`.
fn profile_folder() -> PathBuf {
    let program = env::current_exe().expect("the path of this program");
    let folder = program.parent().expect("a program lies in a folder");
    let folder = if folder.ends_with("deps") {
        folder.parent()
    } else {
        Some(folder)
    };
    folder.expect("deps lies in a folder").to_owned()
}

fn build(folder: &Path) {
    let target = folder
        .parent()
        .expect("a profile's folder lies in the target directory");
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut command = Command::new(cargo);
    // What cargo tells a test of its package: build scripts that ask for it would run again, and all that is built on
    // them be built again.
    for (name, _) in env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"CARGO_PKG_")
            || name.as_encoded_bytes().starts_with(b"CARGO_MANIFEST_")
        {
            command.env_remove(name);
        }
    }
    let output = command
        .args([
            "build",
            "-q",
            "--workspace",
            "--bin=fsserver",
            "--bin=fsclient",
            "--profile",
            profile,
        ])
        .arg("--manifest-path")
        .arg(root.join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", target)
        .output()
        .expect("cargo can be started");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "fsserver and fsclient can't be built:\n{messages}"
    );
}

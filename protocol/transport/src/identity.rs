//! Keys: who a client or server is, and the secret behind its connection ids.

use leasefs_host::files;
use leasefs_host::random::random;
use leasefs_protocol::KeyHash;
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use ring::{digest, hmac};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why an identity can't be had.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file can't be read or written.
    #[error("key file {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Others could read or write the file.
    #[error("key file {path} has mode {mode:o}, expected 600: its key may be known to others")]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another user has made the file, and knows the key.
    #[error("key file {path} belongs to user {owner}: its key is known to them")]
    Owner {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// The file is no ed25519 key.
    #[error("key file {0} is damaged: expected an ed25519 key in PKCS#8 form")]
    Damaged(PathBuf),
    /// No key can be made.
    #[error("can't make a key")]
    Random,
}

/// SHA-256 of a public key in its SubjectPublicKeyInfo form.
pub fn key_hash(spki: &[u8]) -> KeyHash {
    let mut hash = KeyHash::default();
    hash.0
        .copy_from_slice(digest::digest(&digest::SHA256, spki).as_ref());
    hash
}

/// An ed25519 key pair: who a client or server is. Cheap to clone.
#[derive(Clone)]
pub struct Identity {
    certified: Arc<CertifiedKey>,
    hash: KeyHash,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({})", self.hash)
    }
}

impl Identity {
    /// A new identity that is not kept.
    ///
    /// # Errors
    /// [`IdentityError::Random`] if the system has no randomness.
    pub fn generate() -> Result<Self, IdentityError> {
        Self::from_pkcs8(&new_pkcs8()?).ok_or(IdentityError::Random)
    }

    /// The identity kept in a file of mode 0600, made there if there is none. Of several
    /// processes that make it at the same time one wins and all get its key.
    ///
    /// # Errors
    /// If the file can't be used, or others could have read it.
    pub fn load_or_create(path: &Path) -> Result<Self, IdentityError> {
        match Self::load(path) {
            Err(IdentityError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                files::make(path, &new_pkcs8()?).map_err(|source| file_error(path, source))?;
                Self::load(path)
            }
            other => other,
        }
    }

    /// The identity kept in a file of mode 0600.
    ///
    /// # Errors
    /// If the file can't be used, or others could have read it.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        let failed = |source| file_error(path, source);
        let mut file = File::open(path).map_err(failed)?;
        is_private(path, &file.metadata().map_err(failed)?)?;
        let mut pkcs8 = Vec::new();
        file.read_to_end(&mut pkcs8).map_err(failed)?;
        Self::from_pkcs8(&pkcs8).ok_or_else(|| IdentityError::Damaged(path.to_owned()))
    }

    /// The name of this identity.
    pub fn key_hash(&self) -> KeyHash {
        self.hash
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        self.certified.clone()
    }

    fn from_pkcs8(pkcs8: &[u8]) -> Option<Self> {
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8.to_vec()));
        let key = rustls::crypto::ring::sign::any_eddsa_type(match &der {
            PrivateKeyDer::Pkcs8(pkcs8) => pkcs8,
            _ => return None,
        })
        .ok()?;
        let spki = key.public_key()?;
        Some(Self {
            hash: key_hash(spki.as_ref()),
            certified: Arc::new(CertifiedKey::new(
                vec![CertificateDer::from(spki.as_ref().to_vec())],
                key,
            )),
        })
    }
}

fn is_private(path: &Path, found: &Metadata) -> Result<(), IdentityError> {
    let (path, mode) = (path.to_owned(), found.mode() & 0o7777);
    if mode & 0o077 != 0 {
        return Err(IdentityError::Mode { path, mode });
    }
    let owner = found.uid();
    match owner == 0 || owner == rustix::process::geteuid().as_raw() {
        true => Ok(()),
        false => Err(IdentityError::Owner { path, owner }),
    }
}

fn file_error(path: &Path, source: io::Error) -> IdentityError {
    IdentityError::File {
        path: path.to_owned(),
        source,
    }
}

fn new_pkcs8() -> Result<Vec<u8>, IdentityError> {
    Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
        .map(|document| document.as_ref().to_vec())
        .map_err(|_| IdentityError::Random)
}

/// The secret from which an endpoint's stateless-reset and connection-id keys are made. A server
/// keeps it, so that after a restart it can tell clients that their connections are gone.
#[derive(Clone)]
pub struct EndpointSecret([u8; 32]);

impl EndpointSecret {
    /// The secret of these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A new one.
    ///
    /// # Errors
    /// [`IdentityError::Random`] if the system has no randomness.
    pub fn generate() -> Result<Self, IdentityError> {
        random().map(Self).map_err(|_| IdentityError::Random)
    }

    pub(crate) fn reset_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.derive(b"stateless reset").as_ref())
    }

    pub(crate) fn connection_id_key(&self) -> u64 {
        self.derive(b"connection id")
            .as_ref()
            .iter()
            .take(8)
            .fold(0, |key, byte| key << 8 | u64::from(*byte))
    }

    fn derive(&self, label: &[u8]) -> hmac::Tag {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.0), label)
    }
}

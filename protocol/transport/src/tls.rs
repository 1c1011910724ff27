//! TLS 1.3 with raw public keys. The only file that configures rustls.

use crate::error::TransportError;
use crate::identity::{Identity, key_hash};
use leasefs_protocol::KeyHash;
use leasefs_protocol::limits::ALPN;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, ServerConfig,
    SignatureScheme,
};
use std::sync::{Arc, OnceLock};

/// AES-128 first: with the CPU's help it is the fastest of the three.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            TLS13_AES_128_GCM_SHA256,
            TLS13_CHACHA20_POLY1305_SHA256,
            TLS13_AES_256_GCM_SHA384,
        ],
        ..rustls::crypto::ring::default_provider()
    })
}

fn failed(error: impl std::fmt::Display) -> TransportError {
    TransportError::Tls(error.to_string())
}

/// Verifies signatures made with a raw ed25519 key. What the key may do is decided elsewhere.
#[derive(Debug)]
struct RawKeys(Arc<CryptoProvider>);

impl RawKeys {
    fn verify(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature_with_raw_key(
            message,
            &SubjectPublicKeyInfoDer::from(key.as_ref()),
            signature,
            &self.0.signature_verification_algorithms,
        )
    }
}

fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::PeerIncompatible(
        PeerIncompatible::Tls13RequiredForQuic,
    ))
}

/// Takes one server key and no other.
#[derive(Debug)]
pub(crate) struct PinnedServer {
    expected: KeyHash,
    found: OnceLock<KeyHash>,
    keys: RawKeys,
}

impl PinnedServer {
    /// The key the server showed, if it is not the pinned one.
    pub(crate) fn mismatch(&self) -> Option<TransportError> {
        let found = *self.found.get()?;
        (found != self.expected).then_some(TransportError::WrongServer {
            expected: self.expected,
            found,
        })
    }
}

impl ServerCertVerifier for PinnedServer {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let found = *self.found.get_or_init(|| key_hash(key));
        if found != self.expected {
            return Err(Error::General("not the pinned server key".into()));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.keys.verify(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Takes any client key whose owner proves possession: enrolment is decided in `Hello`.
#[derive(Debug)]
struct AnyClient(RawKeys);

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// The client's side, and the verifier that remembers which key it was shown.
pub(crate) fn client(
    identity: &Identity,
    server: KeyHash,
) -> Result<(QuicClientConfig, Arc<PinnedServer>), TransportError> {
    let provider = provider();
    let pinned = Arc::new(PinnedServer {
        expected: server,
        found: OnceLock::new(),
        keys: RawKeys(provider.clone()),
    });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(failed)?
        .dangerous()
        .with_custom_certificate_verifier(pinned.clone())
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
            identity.certified(),
        )));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    let config = QuicClientConfig::try_from(config).map_err(failed)?;
    Ok((config, pinned))
}

/// The server's side.
pub(crate) fn server(identity: &Identity) -> Result<QuicServerConfig, TransportError> {
    let provider = provider();
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(failed)?
        .with_client_cert_verifier(Arc::new(AnyClient(RawKeys(provider))))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(
            identity.certified(),
        )));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    QuicServerConfig::try_from(config).map_err(failed)
}

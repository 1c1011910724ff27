//! Tokens: proofs of opens that outlive the server's process.

use crate::export::Store;
use crate::identity::Identity;
use crate::opens::{ACCESS, OpenFile};
use leasefs_protocol::limits::{MAX_GROUPS, MAX_HANDLE};
use leasefs_protocol::{Handle, KeyHash, OpenId, OpenToken, Refusal, SessionId};
use rustix::fs::OFlags;
use std::sync::Arc;

const VERSION: u8 = 2;

/// Whose a token is. One holder's are worth nothing to any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The client's key.
    pub client: KeyHash,
    /// The session, numbered by its client.
    pub session: SessionId,
    /// Random, made with the session: a later one of the same number has another.
    pub birth: [u8; 16],
}

impl Holder {
    fn context(&self, number: OpenId) -> Vec<u8> {
        let number = number.0.to_le_bytes();
        [&self.client.0[..], &self.session.0, &self.birth, &number].concat()
    }
}

impl Store {
    /// Proof of the holder's open of this number.
    pub fn mint(&self, open: &OpenFile, number: OpenId, holder: &Holder) -> OpenToken {
        let proof = Proof {
            handle: *open.handle(),
            access: open.access,
            identity: open.identity().clone(),
        };
        let context = holder.context(number);
        OpenToken(self.sealer.seal_token(&context, proof.to_bytes()))
    }

    /// Opens again what a token proves, after a restart of the server. There is no new verdict: the
    /// caller's access was decided when the token was made.
    ///
    /// # Errors
    /// [`Refusal::BadOpen`] if the token is forged, another holder's or of another number,
    /// [`Refusal::Stale`] if the object is gone, or the host's.
    pub fn reopen(
        &self,
        token: &OpenToken,
        number: OpenId,
        holder: &Holder,
    ) -> Result<Arc<OpenFile>, Refusal> {
        let body = self
            .sealer
            .unseal_token(&holder.context(number), &token.0)?;
        let proof = Proof::from_bytes(body).ok_or(Refusal::BadOpen)?;
        self.open_granted(proof.handle, proof.access, proof.identity)
    }
}

/// What a token says.
#[derive(Debug, PartialEq, Eq)]
struct Proof {
    handle: Handle,
    access: OFlags,
    identity: Identity,
}

impl Proof {
    fn to_bytes(&self) -> Vec<u8> {
        let handle = self.handle.as_bytes();
        let numbers = [self.access.bits(), self.identity.uid, self.identity.gid];
        let mut bytes = vec![VERSION, handle.len() as u8];
        bytes.extend_from_slice(handle);
        numbers
            .iter()
            .chain(&*self.identity.groups)
            .for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&[version, len], rest) = bytes.split_first_chunk()?;
        let len = usize::from(len);
        if version != VERSION || len > MAX_HANDLE {
            return None;
        }
        let (handle, rest) = rest.split_at_checked(len)?;
        let (numbers, left_over) = rest.as_chunks();
        let numbers: Vec<u32> = numbers.iter().map(|n| u32::from_le_bytes(*n)).collect();
        let (&[access, uid, gid], groups) = numbers.split_first_chunk()?;
        if !left_over.is_empty() || groups.len() > MAX_GROUPS {
            return None;
        }
        Some(Self {
            handle: Handle::new(handle)?,
            access: OFlags::from_bits_retain(access) & ACCESS,
            identity: Identity {
                uid,
                gid,
                groups: groups.into(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_reads_back_and_refuses_what_it_is_not() {
        let proof = Proof {
            handle: Handle::new(b"handle").expect("fits"),
            access: OFlags::RDWR | OFlags::APPEND,
            identity: Identity {
                uid: 1,
                gid: 2,
                groups: [3, 4].into(),
            },
        };
        let bytes = proof.to_bytes();
        assert_eq!(Proof::from_bytes(&bytes), Some(proof));
        for short in [0, 1, 5, 12, bytes.len() - 1] {
            assert_eq!(Proof::from_bytes(&bytes[..short]), None, "{short}");
        }
    }
}

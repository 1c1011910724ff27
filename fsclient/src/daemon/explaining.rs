//! What `fsclient why` is answered: asked of the server, and without it of what is known here.

use super::assemble::Assembled;
use super::why::{Here, Why};
use leasefs_client::{Answer, Asker, Call};
use leasefs_protocol::explain::Explained;
use leasefs_protocol::{Handle, Refusal};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The components of a path below a mount's root, as the daemon takes them; `None` if one leads upwards.
fn components(path: &Path) -> Option<Vec<Box<[u8]>>> {
    let parts = path.components();
    let parts = parts.filter(|part| *part != Component::CurDir);
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.as_encoded_bytes().into()),
        _ => None,
    };
    parts.map(name).collect()
}

impl Assembled {
    /// What an access to a path below the mount point waits for, or would; looked up for `asker`.
    ///
    /// # Errors
    /// Why that can't be told.
    pub(super) async fn why(&self, asker: Asker, path: &Path) -> Result<Why, String> {
        let names = components(path).ok_or("the path leads out of the mount")?;
        let call = Call::Explain {
            path: names.clone(),
        };
        let asked = match self.driver.call_for(asker, call).await {
            Ok(Answer::Explained(told)) => Ok(*told),
            Ok(_) => Err(Refusal::Internal),
            Err(refusal) => Err(refusal),
        };
        let object = match &asked {
            Ok(told) => told.object,
            Err(refusal) => self.without_server(*refusal, &names)?,
        };
        let own = |told: &Explained| told.holders.iter().find(|holder| holder.own)?.granted_ms;
        let here = Here {
            granted_ms: asked.as_ref().ok().and_then(own),
            ..(&self.driver.held_here(&object)).into()
        };
        let status = self.driver.status();
        let of = object.to_string();
        let waits = status.waiting.into_iter();
        let locks = self.driver.locks().into_iter();
        let of_file = locks.filter(|(lock, _)| lock.object == object);
        Ok(Why {
            source: self.source.clone(),
            state: status.state,
            here,
            waiting: waits.filter(|w| w.object.as_ref() == Some(&of)).collect(),
            locks: of_file.map(Into::into).collect(),
            trouble: asked.as_ref().err().map(|refusal| trouble(*refusal)),
            server: asked.ok().map(Into::into),
            object: of,
        })
    }

    /// Who asks why nothing gets on is told what is known here.
    fn without_server(&self, refusal: Refusal, names: &[Box<[u8]>]) -> Result<Handle, String> {
        match refusal {
            Refusal::TimedOut | Refusal::Unsupported => self
                .driver
                .cached_path(names)
                .or_else(|| self.written_here(names))
                .ok_or_else(|| format!("{}, and it is not cached here", trouble(refusal))),
            refusal => Err(match refusal.errno() {
                libc::ENOENT => "no such file or directory".to_owned(),
                libc::ENOTDIR => {
                    "the path goes through something that is no directory; what symbolic \
                                  links of the mount lead to must be named without them"
                        .to_owned()
                }
                _ => refusal.to_string(),
            }),
        }
    }

    /// A file that waits to be written is known here however long the leases on its name have ended.
    fn written_here(&self, names: &[Box<[u8]>]) -> Option<Handle> {
        let path: PathBuf = names.iter().map(|name| OsStr::from_bytes(name)).collect();
        let mut dirty = self.driver.dirty_files().into_iter();
        let (file, _) = dirty.find(|(_, known)| known.as_ref() == Some(&path))?;
        Some(file)
    }
}

fn trouble(refusal: Refusal) -> String {
    match refusal {
        Refusal::TimedOut => "the server does not answer".to_owned(),
        Refusal::Unsupported => "the server is older and can't tell".to_owned(),
        refusal => refusal.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_leads_upwards_is_none_of_the_mount() {
        assert_eq!(
            components(Path::new("a/./b")).map(|parts| parts.len()),
            Some(2)
        );
        assert_eq!(components(Path::new("")).map(|parts| parts.len()), Some(0));
        assert!(components(Path::new("a/../../b")).is_none());
        assert!(components(Path::new("/a")).is_none());
    }
}

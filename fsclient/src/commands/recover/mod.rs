//! `fsclient recover`.

mod diff;
mod list;
mod overlay;
mod place;
mod restore;

use super::{StateArg, examples, say, show};
use crate::daemon::StateDir;
use crate::recovery::{Folder, Recovery, RecoveryId};
use clap::{Args, Subcommand};
use place::Mounts;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct RecoverArgs {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    state: StateArg,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show what is kept: which file, when, why, which bytes
    #[command(after_long_help = examples::LIST)]
    List {
        /// In JSON: `{"items": [..]}`
        #[arg(long)]
        json: bool,
    },
    /// Show how the file as it is now differs from what is kept
    #[command(after_long_help = examples::DIFF)]
    Diff {
        /// As `list` shows it
        id: RecoveryId,
        #[command(flatten)]
        mount: MountArg,
    },
    /// Write the file with what is kept in it, under another name; the item stays until `discard`
    #[command(after_long_help = examples::RESTORE)]
    Restore(restore::RestoreArgs),
    /// Remove items for good
    #[command(after_long_help = examples::DISCARD)]
    Discard {
        /// As `list` shows them
        #[arg(required = true)]
        ids: Vec<RecoveryId>,
    },
}

/// Where the file is now.
#[derive(Debug, Args)]
struct MountArg {
    /// Where the item's source is mounted, or a directory with the same files [default: a mount of
    /// the source]
    #[arg(long = "mount", value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl MountArg {
    fn mounts(&self) -> Result<Mounts, String> {
        match &self.dir {
            Some(dir) => Ok(Mounts::Only(dir.clone())),
            None => Mounts::all(),
        }
    }
}

pub(super) fn run(args: &RecoverArgs) -> Result<(), String> {
    let recovery = StateDir::find(args.state.state.as_deref())?.recovery();
    match &args.what {
        What::List { json } => list::run(&recovery, *json),
        What::Diff { id, mount } => {
            let mounts = mount.mounts()?;
            diff::run(&as_its_user(&recovery, *id)?, *id, &mounts)
        }
        What::Restore(args) => {
            let mounts = args.mount.mounts()?;
            restore::run(&as_its_user(&recovery, args.id)?, args, &mounts)
        }
        What::Discard { ids } => ids.iter().try_for_each(|id| discard(&recovery, *id)),
    }
}

/// The folder that has the item. If it is another user's, everything is done as that user from here on.
fn as_its_user(recovery: &Recovery, id: RecoveryId) -> Result<Folder, String> {
    let folder = recovery.folder_with(id).map_err(|e| e.to_string())?;
    if let Some(user) = folder.other_user() {
        let became = user.become_for_good();
        became.map_err(|e| {
            format!(
                "{id} is of user {}, as whom nothing can be done: {e}",
                user.uid
            )
        })?;
        say(&format!(
            "{id} is of user {}: acting as that user",
            user.uid
        ));
    }
    Ok(folder)
}

fn discard(recovery: &Recovery, id: RecoveryId) -> Result<(), String> {
    let folder = recovery.folder_with(id).map_err(|e| e.to_string())?;
    folder.discard(id).map_err(|e| e.to_string())?;
    show(&format!("{id} is discarded"))
}

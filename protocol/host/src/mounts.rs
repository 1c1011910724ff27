//! The mount table of this process's namespace.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Where the kernel tells it. Its poll says that it has changed.
pub const TABLE: &str = "/proc/self/mountinfo";
/// The type of our mounts: FUSE names it behind its own.
const LEASEFS: &[u8] = b"fuse.leasefs";

/// The number of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// Of its driver.
    pub major: u32,
    /// Among the driver's.
    pub minor: u32,
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its id, as `statx` tells it.
    pub id: u64,
    /// The mount that it is mounted in.
    pub parent: u64,
    /// The file system it shows.
    pub device: Device,
    /// The directory of the file system that it shows.
    pub root: PathBuf,
    /// Where it shows it.
    pub point: PathBuf,
    /// Whether nothing can be changed there.
    pub read_only: bool,
    /// Its own options, as mount(8) takes them: `rw,nosuid,nodev,relatime`.
    pub options: String,
    /// Whether it is one of ours.
    pub is_leasefs: bool,
    /// The type of its file system.
    pub kind: String,
    /// What is mounted.
    pub source: String,
    /// The user who has mounted it, if it is a FUSE mount.
    pub user: Option<u32>,
}

/// All mounts, in the order in which they were mounted.
///
/// # Errors
/// The kernel's.
pub fn table() -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read(TABLE)?))
}

/// The mounts that the text of a table names.
pub fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// The topmost mount at a path that is one.
pub fn at<'t>(table: &'t [Mount], point: &Path) -> Option<&'t Mount> {
    table.iter().rfind(|mount| mount.point == point)
}

/// Whose mount the topmost one there is, if it is one of ours.
pub fn mounted_by(table: &[Mount], point: &Path) -> Option<u32> {
    let mount = at(table, point).filter(|mount| mount.is_leasefs)?;
    // FUSE always says it.
    Some(mount.user.unwrap_or_default())
}

/// The mount with this id, as `statx` tells it.
pub fn with_id(table: &[Mount], id: u64) -> Option<&Mount> {
    table.iter().find(|mount| mount.id == id)
}

/// The mount that a path lies in.
pub fn of<'t>(table: &'t [Mount], path: &Path) -> Option<&'t Mount> {
    path.ancestors().find_map(|above| at(table, above))
}

/// `ID PARENT MAJ:MIN ROOT POINT OPTIONS .. - TYPE SOURCE OPTIONS`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ');
    let (id, parent) = (number(words.next()?)?, number(words.next()?)?);
    let device = device(words.next()?)?;
    let (root, point) = (unescape(words.next()?), unescape(words.next()?));
    let options = String::from_utf8_lossy(words.next()?).into_owned();
    let mut behind = words.skip_while(|word| *word != b"-").skip(1);
    let kind = behind.next()?;
    Some(Mount {
        id,
        parent,
        device,
        root,
        point,
        read_only: options.split(',').any(|option| option == "ro"),
        options,
        is_leasefs: kind == LEASEFS,
        kind: unescape(kind).display().to_string(),
        source: unescape(behind.next()?).display().to_string(),
        user: behind.next().and_then(user),
    })
}

fn user(options: &[u8]) -> Option<u32> {
    let mut options = options.split(|byte| *byte == b',');
    number(options.find_map(|option| option.strip_prefix(b"user_id="))?)
}

fn number<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn device(word: &[u8]) -> Option<Device> {
    let mut parts = word.splitn(2, |byte| *byte == b':');
    Some(Device {
        major: number(parts.next()?)?,
        minor: number(parts.next()?)?,
    })
}

/// Blanks and backslashes stand in the table as octal escapes.
fn unescape(word: &[u8]) -> PathBuf {
    let (mut plain, mut rest) = (Vec::with_capacity(word.len()), word);
    while let Some((&byte, behind)) = rest.split_first() {
        let octal = (byte == b'\\')
            .then(|| behind.split_first_chunk::<3>())
            .flatten()
            .and_then(|(digits, behind)| {
                let digits = std::str::from_utf8(digits).ok()?;
                Some((u8::from_str_radix(digits, 8).ok()?, behind))
            });
        let (byte, behind) = octal.unwrap_or((byte, behind));
        plain.push(byte);
        rest = behind;
    }
    OsString::from_vec(plain).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] =
        b"29 1 0:26 / /mnt/a\\040b\\134c rw,nosuid shared:7 master:1 - fuse.leasefs nas:/ rw,user_id=7,group_id=8\n\
        30 29 98:0 /sub /mnt/a\\040b\\134c/d rw - ext4 /dev/root rw\n\
        31 1 0:4 net:[4026531840] /run/netns/x rw - nsfs nsfs rw\n\
        nonsense\n";

    #[test]
    fn lines_are_read_with_escapes_and_optional_fields_and_others_are_passed_over() {
        let table = parse(TEXT);
        let ids: Vec<u64> = table.iter().map(|mount| mount.id).collect();
        assert_eq!(ids, [29, 30, 31]);
        let expected = Mount {
            id: 29,
            parent: 1,
            device: Device {
                major: 0,
                minor: 26,
            },
            root: "/".into(),
            point: "/mnt/a b\\c".into(),
            read_only: false,
            is_leasefs: true,
            options: "rw,nosuid".to_owned(),
            kind: "fuse.leasefs".to_owned(),
            source: "nas:/".to_owned(),
            user: Some(7),
        };
        assert_eq!(table[0], expected);
        assert!(!table[1].is_leasefs);
    }

    #[test]
    fn a_path_lies_in_the_nearest_mount_and_of_two_on_one_point_in_the_later() {
        let mut table = parse(TEXT);
        let inside = Path::new("/mnt/a b\\c/d/e");
        assert_eq!(of(&table, inside).map(|mount| mount.id), Some(30));
        assert_eq!(of(&table, Path::new("/mnt/a b\\c")).map(|m| m.id), Some(29));
        assert_eq!(of(&table, Path::new("/mnt/a")), None);
        let over = Mount {
            id: 40,
            ..table[1].clone()
        };
        table.push(over);
        assert_eq!(of(&table, inside).map(|mount| mount.id), Some(40));
    }

    #[test]
    fn this_host_has_a_root() {
        let table = table().expect("the mount table");
        assert!(of(&table, Path::new("/")).is_some());
    }
}

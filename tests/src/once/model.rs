//! What one worker has made, by the answers it got. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// What a name denotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// A file; several names may denote one.
    File(u64),
    /// An empty directory.
    Directory,
}

/// The names of one worker and the content of its files.
#[derive(Clone, Debug, Default)]
pub struct Model {
    names: BTreeMap<String, Node>,
    content: BTreeMap<u64, String>,
    made: u64,
}

impl Model {
    /// A number not used before.
    pub fn fresh(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = (&String, Node)> {
        self.names.iter().map(|(name, node)| (name, *node))
    }

    /// The names of files, or of directories.
    pub fn of_kind(&self, directories: bool) -> Vec<String> {
        let is = |node: Node| (node == Node::Directory) == directories;
        let named = self.names().filter(|(_, node)| is(*node));
        named.map(|(name, _)| name.clone()).collect()
    }

    /// Something new has this name.
    pub fn made(&mut self, name: &str, directory: bool) {
        let node = match directory {
            true => Node::Directory,
            false => {
                let id = self.fresh();
                self.content.insert(id, String::new());
                Node::File(id)
            }
        };
        self.names.insert(name.to_owned(), node);
    }

    /// The file of this name has grown.
    pub fn appended(&mut self, name: &str, record: &str) {
        if let Some(Node::File(id)) = self.names.get(name)
            && let Some(content) = self.content.get_mut(id)
        {
            content.push_str(record);
        }
    }

    /// What the file of this name holds.
    pub fn content(&self, name: &str) -> Option<&str> {
        match self.names.get(name)? {
            Node::File(id) => self.content.get(id).map(String::as_str),
            Node::Directory => None,
        }
    }

    /// What `old` denotes is called `new` too.
    pub fn linked(&mut self, old: &str, new: &str) {
        if let Some(node) = self.names.get(old).copied() {
            self.names.insert(new.to_owned(), node);
        }
    }

    /// What `old` denotes is called `new`, and `new`'s object is not any more.
    pub fn renamed(&mut self, old: &str, new: &str) {
        if self.names.get(old) == self.names.get(new) {
            return;
        }
        if let Some(node) = self.names.remove(old) {
            self.names.insert(new.to_owned(), node);
        }
    }

    /// Each has the other's name.
    pub fn exchanged(&mut self, one: &str, other: &str) {
        let (a, b) = (self.names.get(one).copied(), self.names.get(other).copied());
        if let (Some(a), Some(b)) = (a, b) {
            self.names.insert(one.to_owned(), b);
            self.names.insert(other.to_owned(), a);
        }
    }

    /// The name is gone.
    pub fn removed(&mut self, name: &str) {
        self.names.remove(name);
    }

    /// Compares with what is found: of each name its content (none for a directory) and a number
    /// that names of one file share. Returns what differs.
    pub fn differences(&self, found: &BTreeMap<String, (Option<String>, u64)>) -> Vec<String> {
        let mut differences = Vec::new();
        for name in found.keys().filter(|name| !self.names.contains_key(*name)) {
            differences.push(format!("{name} is there and must not be"));
        }
        let mut numbers = BTreeMap::<Node, BTreeSet<u64>>::new();
        for (name, node) in self.names() {
            let Some((content, number)) = found.get(name) else {
                differences.push(format!("{name} is missing"));
                continue;
            };
            let expected = match node {
                Node::File(id) => self.content.get(&id),
                Node::Directory => None,
            };
            if content.as_ref() != expected {
                differences.push(format!("{name}: expected {expected:?}, found {content:?}"));
            }
            if matches!(node, Node::File(_)) {
                numbers.entry(node).or_default().insert(*number);
            }
        }
        for (node, numbers) in numbers.iter().filter(|(_, numbers)| numbers.len() > 1) {
            differences.push(format!("names of one file ({node:?}) lead to {numbers:?}"));
        }
        differences
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(entries: &[(&str, Option<&str>, u64)]) -> BTreeMap<String, (Option<String>, u64)> {
        let entry = |(name, content, number): &(&str, Option<&str>, u64)| {
            let content = content.map(str::to_owned);
            ((*name).to_owned(), (content, *number))
        };
        entries.iter().map(entry).collect()
    }

    fn model() -> Model {
        let mut model = Model::default();
        model.made("a", false);
        model.appended("a", "1");
        model.linked("a", "b");
        model.made("d", true);
        model
    }

    #[test]
    fn what_was_answered_is_what_is_expected() {
        let mut model = model();
        let as_made = [("a", Some("1"), 7), ("b", Some("1"), 7), ("d", None, 8)];
        assert_eq!(model.differences(&found(&as_made)), Vec::<String>::new());
        model.made("c", false);
        model.renamed("c", "a");
        model.exchanged("b", "d");
        let renamed = [("a", Some(""), 9), ("d", Some("1"), 7), ("b", None, 8)];
        assert_eq!(model.differences(&found(&renamed)), Vec::<String>::new());
        ["a", "b", "d"].iter().for_each(|name| model.removed(name));
        assert_eq!(model.differences(&found(&[])), Vec::<String>::new());
    }

    #[test]
    fn doubled_appends_missing_and_undead_names_and_split_links_are_flagged() {
        let model = model();
        let wrong = [
            vec![("a", Some("11"), 7), ("b", Some("11"), 7), ("d", None, 8)],
            vec![("a", Some("1"), 7), ("d", None, 8)],
            vec![
                ("a", Some("1"), 7),
                ("b", Some("1"), 7),
                ("d", None, 8),
                ("e", None, 9),
            ],
            vec![("a", Some("1"), 7), ("b", Some("1"), 9), ("d", None, 8)],
        ];
        for entries in wrong {
            assert!(
                !model.differences(&found(&entries)).is_empty(),
                "{entries:?}"
            );
        }
    }
}

//! Messages as an attacker makes them: well-formed, with the ids that are known to be real in the
//! places where they mean something.
//!
//! A deserializer that reads a fuzzer's bytes: whatever message the protocol has, it can make, and
//! what is to be chosen in each place follows from the names of types and fields.

use leasefs_protocol::{Handle, OpenToken};
use serde::de::value::Error;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer,
    SeqAccess, VariantAccess, Visitor,
};

/// What an attacker has learned.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Handles.
    pub handles: Vec<Handle>,
    /// Numbers of opens.
    pub opens: Vec<u64>,
    /// Their tokens.
    pub tokens: Vec<OpenToken>,
    /// Numbers of recalls.
    pub recalls: Vec<u64>,
    /// Numbers of changes.
    pub seqs: Vec<u64>,
    /// Names worth asking for.
    pub names: Vec<Vec<u8>>,
    /// Of an enum, the variant that is wanted nearly always.
    pub preferred: Vec<(&'static str, &'static str)>,
}

impl Known {
    /// Remembers at most so many of each: the newest.
    pub fn forget_oldest(&mut self, most: usize) {
        fn cut<T>(all: &mut Vec<T>, most: usize) {
            all.drain(..all.len().saturating_sub(most));
        }
        cut(&mut self.handles, most);
        cut(&mut self.opens, most);
        cut(&mut self.tokens, most);
        cut(&mut self.recalls, most);
        cut(&mut self.seqs, most);
    }
}

/// Bytes of a fuzzer, from which choices are taken; zeros once they have run out.
#[derive(Debug)]
pub struct Choices(std::vec::IntoIter<u8>);

impl Choices {
    /// All of `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        Self(Vec::from(bytes).into_iter())
    }

    /// Whether none are left.
    pub fn is_empty(&self) -> bool {
        self.0.as_slice().is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.0.next().unwrap_or(0)
    }

    /// The next bytes, at most `most`.
    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        self.0.by_ref().take(most).collect()
    }

    /// One of these.
    pub fn of<'t, T>(&mut self, all: &'t [T]) -> Option<&'t T> {
        let byte = usize::from(self.byte());
        all.get(byte.checked_rem(all.len())?)
    }

    fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..0xa0 => u64::from(small),
            which @ 0xa0..0xf0 => EDGES[usize::from(which - 0xa0) % EDGES.len()],
            _ => {
                let mut bytes = [0; 8];
                let found = self.bytes(8);
                bytes[..found.len()].copy_from_slice(&found);
                u64::from_le_bytes(bytes)
            }
        }
    }
}

/// Numbers next to which bugs live.
const EDGES: [u64; 20] = [
    255,
    256,
    4095,
    4096,
    65_535,
    65_536,
    1 << 20,
    (1 << 20) + 1,
    i32::MAX as u64,
    u32::MAX as u64,
    1 << 32,
    i64::MAX as u64 - 4096,
    i64::MAX as u64 - 1,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 4096,
    u64::MAX - 1,
    u64::MAX,
    999_999_999,
    1_000_000_000,
];

const FLAGS: [i32; 20] = [
    libc::O_RDONLY,
    libc::O_WRONLY,
    libc::O_RDWR,
    libc::O_RDWR | libc::O_TRUNC,
    libc::O_RDWR | libc::O_APPEND,
    libc::O_RDWR | libc::O_EXCL,
    libc::O_RDWR | libc::O_CREAT,
    libc::O_DIRECTORY,
    libc::O_DIRECTORY | libc::O_RDWR,
    libc::O_PATH,
    libc::O_NOFOLLOW,
    libc::O_WRONLY | libc::O_SYNC,
    libc::O_DIRECT | libc::O_RDWR,
    libc::O_TMPFILE | libc::O_RDWR,
    0o40, // FMODE_EXEC
    1,    // RENAME_NOREPLACE, XATTR_CREATE
    2,    // RENAME_EXCHANGE, XATTR_REPLACE
    4,    // RENAME_WHITEOUT
    libc::O_ACCMODE,
    libc::O_NONBLOCK,
];

const MODES: [u32; 14] = [
    0o100_644, 0o100_600, 0o100_000, 0o106_755, 0o40_755, 0o40_700, 0o41_777, 0o10_644, 0o20_666,
    0o60_666, 0o120_777, 0o140_777, 0o7777, 0o644,
];

/// A `T` of these choices; `None` if they make none.
pub fn forge<T: DeserializeOwned>(choices: &mut Choices, known: &Known) -> Option<T> {
    T::deserialize(&mut Forge {
        choices,
        known,
        wanted: "",
        depth: 0,
    })
    .ok()
}

struct Forge<'c, 'k> {
    choices: &'c mut Choices,
    known: &'k Known,
    /// Name of the newtype or of the field that is being made.
    wanted: &'static str,
    depth: usize,
}

impl Forge<'_, '_> {
    fn number(&mut self) -> u64 {
        let known = match self.wanted {
            "OpenId" => &self.known.opens,
            "RecallId" => &self.known.recalls,
            "Seq" => &self.known.seqs,
            "flags" => return *self.choices.of(&FLAGS).unwrap_or(&0) as u64,
            "mode" => return u64::from(*self.choices.of(&MODES).unwrap_or(&0)),
            _ => return self.choices.number(),
        };
        match self.choices.byte() {
            0xf0.. => self.choices.number(),
            byte => match known.len() {
                0 => u64::from(byte),
                // The newest first: small bytes are what a fuzzer likes.
                len => known[len - 1 - usize::from(byte) % len],
            },
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let strange = self.choices.byte() >= 0xf0;
        let known = match self.wanted {
            _ if strange => None,
            "RawName" => self.choices.of(&self.known.names).cloned(),
            "OpenToken" => self.choices.of(&self.known.tokens).map(|t| t.0.clone()),
            _ => {
                let handle = self.choices.of(&self.known.handles);
                handle.map(|handle| handle.as_bytes().to_vec())
            }
        };
        known.unwrap_or_else(|| {
            let len = usize::from(self.choices.byte());
            self.choices.bytes(len)
        })
    }

    fn len(&mut self) -> usize {
        match self.choices.byte() {
            byte @ 0..0xf8 => usize::from(byte % 4),
            0xf8 => 64,
            0xf9 => 65,
            0xfa => 1024,
            0xfb => 2048,
            0xfc => 2049,
            _ => usize::from(self.choices.byte()),
        }
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident $type:ty),*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit(self.number() as $type)
        }
    )*};
}

macro_rules! never {
    ($($method:ident),*) => {$(
        fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(Error::custom("not made"))
        }
    )*};
}

impl<'de> Deserializer<'de> for &mut Forge<'_, '_> {
    type Error = Error;

    numbers!(
        deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64, deserialize_i8 visit_i8 i8,
        deserialize_i16 visit_i16 i16, deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64
    );

    never!(
        deserialize_any,
        deserialize_char,
        deserialize_f32,
        deserialize_f64,
        deserialize_identifier,
        deserialize_ignored_any,
        deserialize_map
    );

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u8(self.choices.byte())
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(self.choices.byte() & 1 == 1)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let text = self.bytes();
        visitor.visit_string(String::from_utf8_lossy(&text).into_owned())
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bytes(&self.bytes())
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.choices.byte() & 1 {
            0 => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        let outer = std::mem::replace(&mut self.wanted, name);
        // A sequence of numbers else.
        let made = match name {
            "OpenToken" => visitor.visit_newtype_struct(self.bytes().into_deserializer()),
            _ => visitor.visit_newtype_struct(&mut *self),
        };
        self.wanted = outer;
        made
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let left = self.len();
        visitor.visit_seq(Items {
            forge: self,
            left,
            fields: &[],
        })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        if matches!(self.wanted, "SessionId" | "KeyHash" | "BootId" | "ExportId") {
            let byte = self.choices.byte();
            return visitor.visit_seq(vec![byte; len].into_deserializer());
        }
        visitor.visit_seq(Items {
            forge: self,
            left: len,
            fields: &[],
        })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(Items {
            forge: self,
            left: fields.len(),
            fields,
        })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let preferred = self.known.preferred.iter().rev();
        let preferred = preferred.clone().find(|(of, _)| *of == name);
        let place = preferred.and_then(|(_, wanted)| variants.iter().position(|v| v == wanted));
        let variant = match (place, self.choices.byte()) {
            (Some(place), 0..0xe0) => place,
            (_, byte) => usize::from(byte) % variants.len(),
        };
        visitor.visit_enum(Variant {
            forge: self,
            variant: variant as u32,
        })
    }
}

struct Items<'f, 'c, 'k> {
    forge: &'f mut Forge<'c, 'k>,
    left: usize,
    fields: &'static [&'static str],
}

impl<'de> SeqAccess<'de> for Items<'_, '_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        if self.left == 0 || self.forge.depth > 16 {
            return Ok(None);
        }
        let field = self.fields.len().checked_sub(self.left);
        if let Some(name) = field.and_then(|at| self.fields.get(at)) {
            self.forge.wanted = name;
        }
        self.left -= 1;
        self.forge.depth += 1;
        let made = seed.deserialize(&mut *self.forge);
        self.forge.depth -= 1;
        made.map(Some)
    }
}

struct Variant<'f, 'c, 'k> {
    forge: &'f mut Forge<'c, 'k>,
    variant: u32,
}

impl<'de> EnumAccess<'de> for Variant<'_, '_, '_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let variant = seed.deserialize(self.variant.into_deserializer())?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, '_, '_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.forge)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        self.forge.deserialize_tuple(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.forge.deserialize_struct("", fields, visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasefs_protocol::control::{Push, ToClient, ToServer};
    use leasefs_protocol::{Change, Query, Reply, RequestFrame};
    use std::collections::BTreeSet;

    fn all<T: DeserializeOwned>(show: impl Fn(&T) -> &'static str) -> BTreeSet<&'static str> {
        let known = Known::default();
        let made = (0..=255).filter_map(|byte| forge::<T>(&mut Choices::new(&[byte; 64]), &known));
        made.map(|message| show(&message)).collect()
    }

    #[test]
    fn every_kind_of_request_and_every_message_can_be_made() {
        assert_eq!(all::<Query>(Query::kind).len(), Query::KINDS.len());
        assert_eq!(all::<Change>(Change::kind).len(), Change::KINDS.len());
        for byte in 0..=255 {
            let known = Known::default();
            let choices = || Choices::new(&[byte; 64]);
            let mut made = BTreeSet::new();
            made.insert(forge::<ToServer>(&mut choices(), &known).is_some());
            made.insert(forge::<ToClient>(&mut choices(), &known).is_some());
            made.insert(forge::<Push>(&mut choices(), &known).is_some());
            made.insert(forge::<RequestFrame>(&mut choices(), &known).is_some());
            made.insert(forge::<Reply>(&mut choices(), &known).is_some());
            assert!(made.contains(&true), "{byte}");
        }
    }

    #[test]
    fn known_ids_stand_where_they_mean_something() {
        let known = Known {
            handles: vec![Handle::new(b"real").expect("short")],
            opens: vec![77],
            ..Known::default()
        };
        let made = forge::<Handle>(&mut Choices::new(&[0, 0]), &known);
        assert_eq!(made, known.handles.first().copied());
        let open = forge::<leasefs_protocol::OpenId>(&mut Choices::new(&[0]), &known);
        assert_eq!(open, Some(leasefs_protocol::OpenId(77)));
    }
}

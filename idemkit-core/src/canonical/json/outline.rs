//! First pass: is it JSON, and in which order do the members of each object go?

use super::{is_white_space, number, string};

/// Where the objects of a document and their members lie. Objects are numbered in the order in which they begin.
#[derive(Debug, Default)]
pub(super) struct Outline {
    pub(super) objects: Vec<Object>,
    pub(super) members: Vec<Member>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    /// Its members in canonical order, a range of [`Outline::members`].
    pub(super) members_start: usize,
    pub(super) members_end: usize,
    /// Offset just after its closing brace.
    pub(super) end: usize,
    /// Number of the first object that begins after it.
    pub(super) next_object: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    /// Offset of the opening quote of its name.
    pub(super) start: usize,
    /// Offset just after its value, or after white space that follows the value.
    pub(super) end: usize,
    /// Number of the first object that begins in it, if any does.
    pub(super) next_object: usize,
}

impl Outline {
    /// Nothing, if the text is not one JSON value with nothing but white space around it.
    pub(super) fn of(text: &str) -> Option<Self> {
        let mut scan =
            Scan { text, at: 0, outline: Self::default(), open: vec![], open_objects: vec![], open_members: vec![] };
        loop {
            if !scan.value()? {
                continue;
            }
            if !scan.after_value()? {
                return Some(scan.outline);
            }
        }
    }
}

struct Scan<'a> {
    text: &'a str,
    at: usize,
    outline: Outline,
    /// One byte for each array and object that is open, since arrays may be nested as deep as the text is long.
    open: Vec<Container>,
    open_objects: Vec<OpenObject>,
    /// The members, so far, of all objects that are open: those of the innermost object are the last.
    open_members: Vec<Member>,
}

#[derive(Clone, Copy)]
enum Container {
    Array,
    Object,
}

struct OpenObject {
    number: usize,
    /// Where its members begin in [`Scan::open_members`].
    members_start: usize,
}

impl Scan<'_> {
    /// Reads a scalar, an empty container, or the beginning of a container up to where its first value is due. Tells
    /// whether a value is complete.
    fn value(&mut self) -> Option<bool> {
        self.skip_white_space();
        match self.peek()? {
            b'[' => {
                self.at += 1;
                self.open.push(Container::Array);
                self.skip_white_space();
                // The closing bracket is left for `after_value`, as that of an array with elements.
                Some(self.peek()? == b']')
            }
            b'{' => {
                self.at += 1;
                self.begin_object();
                self.skip_white_space();
                if self.peek()? == b'}' {
                    return Some(true);
                }
                self.name()?;
                Some(false)
            }
            b'"' => self.skip_to(string::end(self.text, self.at)?),
            b'-' | b'0'..=b'9' => self.skip_to(number::end(self.text.as_bytes(), self.at)?),
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            b'n' => self.literal("null"),
            _ => None,
        }
    }

    /// Reads what follows a value, closing what closes, up to where the next value is due. Tells whether one is: else
    /// it was the end of the text.
    fn after_value(&mut self) -> Option<bool> {
        loop {
            self.skip_white_space();
            let Some(innermost) = self.open.last() else {
                return (self.at == self.text.len()).then_some(false);
            };
            match (innermost, self.peek()?) {
                (Container::Array, b',') => {
                    self.at += 1;
                    return Some(true);
                }
                (Container::Array, b']') => {
                    self.at += 1;
                    self.open.pop();
                }
                (Container::Object, b',') => {
                    self.end_member();
                    self.at += 1;
                    self.skip_white_space();
                    self.name()?;
                    return Some(true);
                }
                (Container::Object, b'}') => {
                    self.end_member();
                    self.at += 1;
                    self.open.pop();
                    self.end_object()?;
                }
                _ => return None,
            }
        }
    }

    /// Reads the name of a member and the colon.
    fn name(&mut self) -> Option<()> {
        let start = self.at;
        if self.peek()? != b'"' {
            return None;
        }
        self.at = string::end(self.text, start)?;
        self.skip_white_space();
        if self.peek()? != b':' {
            return None;
        }
        self.at += 1;
        self.open_members.push(Member { start, end: start, next_object: self.outline.objects.len() });
        Some(())
    }

    fn begin_object(&mut self) {
        let number = self.outline.objects.len();
        let members_start = self.open_members.len();
        self.open.push(Container::Object);
        self.open_objects.push(OpenObject { number, members_start });
        // All of it is known when the object ends; until then it holds the number's place.
        self.outline.objects.push(Object { members_start: 0, members_end: 0, end: 0, next_object: 0 });
    }

    fn end_member(&mut self) {
        let members_start = self.open_objects.last().map_or(0, |object| object.members_start);
        // An empty object has no member to end, and the last one noted, if any, belongs to an object around it.
        if let Some(member) = self.open_members[members_start..].last_mut() {
            member.end = self.at;
        }
    }

    fn end_object(&mut self) -> Option<()> {
        let OpenObject { number, members_start: open_start } = self.open_objects.pop()?;
        let members = &mut self.open_members[open_start..];
        let name = |member: &Member| string::characters(self.text, member.start);
        // Stable: the last of equal names is the one that was written last.
        members.sort_by(|one, other| name(one).cmp(name(other)));
        let members_start = self.outline.members.len();
        for (index, member) in members.iter().enumerate() {
            let repeated = members.get(index + 1).is_some_and(|next| name(member).eq(name(next)));
            if !repeated {
                self.outline.members.push(*member);
            }
        }
        self.open_members.truncate(open_start);
        let (members_end, next_object) = (self.outline.members.len(), self.outline.objects.len());
        self.outline.objects[number] = Object { members_start, members_end, end: self.at, next_object };
        Some(())
    }

    fn literal(&mut self, literal: &str) -> Option<bool> {
        self.text.as_bytes()[self.at..].starts_with(literal.as_bytes()).then_some(())?;
        self.skip_to(self.at + literal.len())
    }

    fn skip_to(&mut self, end: usize) -> Option<bool> {
        self.at = end;
        Some(true)
    }

    fn skip_white_space(&mut self) {
        while self.peek().is_some_and(is_white_space) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }
}

//! A pickle machine that executes nothing: it builds numbers, strings, lists, dictionaries and descriptions of
//! tensors, and refuses every other class or function by its name.
//!
//! Values live in one arena and refer to each other by index, so a pickle may be as deep, shared or cyclic as it likes:
//! building it costs memory in proportion to its length and no recursion.

use std::collections::BTreeMap;

use super::dtype::Dtype;

/// Most instructions run; a checkpoint of 100,000 tensors has about 3.5 million.
const MAX_STEPS: usize = 4 << 20;
/// Newest pickle protocol.
const MAX_PROTOCOL: u8 = 5;
/// Most dimensions of a tensor.
const MAX_RANK: usize = 8;

/// Index of a value in the arena.
pub(super) type Id = u32;

/// What a pickle can hold here.
#[derive(Debug, Clone)]
pub(super) enum Value<'a> {
    /// Of no interest: `None`, bytes, numbers beyond i64, devices, sets.
    Opaque,
    Bool,
    Float,
    Int(i64),
    Str(&'a str),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    /// In insertion order.
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(Box<Storage<'a>>),
    Tensor(Box<Tensor<'a>>),
}

/// The names that a pickle may mention; none is a function that is called.
#[derive(Debug, Clone, Copy)]
pub(super) enum Global {
    OrderedDict,
    Set,
    Device,
    Size,
    Dtype(&'static Dtype),
    TypedStorage(&'static Dtype),
    UntypedStorage,
    RebuildTensor,
    RebuildTensorUntyped,
    RebuildParameter,
}

impl Global {
    fn allowed(module: &str, name: &str) -> Option<Self> {
        Some(match (module, name) {
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("builtins" | "__builtin__", "set" | "frozenset") => Self::Set,
            ("torch", "Size") => Self::Size,
            ("torch", "device") => Self::Device,
            ("torch", "UntypedStorage") | ("torch.storage", "UntypedStorage" | "_UntypedStorage") => {
                Self::UntypedStorage
            }
            ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Self::RebuildTensor,
            ("torch._utils", "_rebuild_tensor_v3") => Self::RebuildTensorUntyped,
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Self::RebuildParameter,
            ("torch", name) => {
                return Dtype::of_storage(name).map(Self::TypedStorage).or_else(|| Dtype::named(name).map(Self::Dtype));
            }
            _ => return None,
        })
    }
}

/// A block of memory that tensors are views of.
#[derive(Debug, Clone)]
pub(super) struct Storage<'a> {
    /// Name of its entry in the archive.
    pub(super) key: &'a str,
    /// `None`: counted in bytes.
    pub(super) dtype: Option<&'static Dtype>,
    /// Elements, or bytes where there is no type.
    pub(super) len: usize,
}

/// A view of a storage.
#[derive(Debug, Clone)]
pub(super) struct Tensor<'a> {
    pub(super) storage: Storage<'a>,
    pub(super) dtype: &'static Dtype,
    /// First element.
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
    /// Elements from one index to the next, per dimension.
    pub(super) strides: Vec<usize>,
}

/// Why a pickle is not read.
#[derive(Debug)]
pub(super) enum PickleError {
    /// It mentions a class or function that is not on the list.
    Global(String),
    /// It breaks the rules of the format, or needs a part of them that torch.save does not use.
    Broken(String),
}

impl From<String> for PickleError {
    fn from(what: String) -> Self {
        Self::Broken(what)
    }
}

/// A finished pickle.
pub(super) struct Pickle<'a> {
    values: Vec<Value<'a>>,
    root: Id,
}

impl<'a> Pickle<'a> {
    /// Runs the instructions in `bytes`.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, PickleError> {
        let mut machine =
            Machine { bytes, at: 0, values: Vec::new(), stack: Vec::new(), marks: Vec::new(), memo: BTreeMap::new() };
        for _ in 0..MAX_STEPS {
            let at = machine.at;
            let step = machine.step().map_err(|error| match error {
                PickleError::Broken(what) => PickleError::Broken(format!("byte {at}: {what}")),
                global => global,
            })?;
            if let Some(root) = step {
                return Ok(Self { values: machine.values, root });
            }
        }
        Err(format!("more than {MAX_STEPS} instructions").into())
    }

    /// The whole object.
    pub(super) fn root(&self) -> Id {
        self.root
    }

    /// One value.
    pub(super) fn value(&self, id: Id) -> &Value<'a> {
        &self.values[id as usize]
    }

    /// Values in the arena.
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value<'a>>,
    stack: Vec<Id>,
    /// Heights of the stack at the marks that are open.
    marks: Vec<usize>,
    memo: BTreeMap<u32, Id>,
}

type Step<T> = Result<T, PickleError>;

impl<'a> Machine<'a> {
    /// One instruction; the root at the end.
    fn step(&mut self) -> Step<Option<Id>> {
        match self.u8()? {
            0x80 => {
                let protocol = self.u8()?;
                if protocol > MAX_PROTOCOL {
                    return Err(format!("pickle protocol {protocol}, at most {MAX_PROTOCOL} is read").into());
                }
            }
            0x95 => {
                self.take(8)?;
            }
            b'.' => return self.pop().map(Some),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                self.pop_mark()?;
            }
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }
            b'N' => self.push(Value::Opaque),
            0x88 | 0x89 => self.push(Value::Bool),
            b'J' => {
                let value = i32::from_le_bytes(self.array()?);
                self.push(Value::Int(value.into()));
            }
            b'K' => {
                let value = self.u8()?;
                self.push(Value::Int(value.into()));
            }
            b'M' => {
                let value = u16::from_le_bytes(self.array()?);
                self.push(Value::Int(value.into()));
            }
            0x8a => {
                let len = self.u8()? as usize;
                self.long(len)?;
            }
            0x8b => {
                let len = self.u32()? as usize;
                self.long(len)?;
            }
            b'G' => {
                self.take(8)?;
                self.push(Value::Float);
            }
            b'X' => {
                let len = self.u32()? as usize;
                self.string(len)?;
            }
            0x8c | b'U' => {
                let len = self.u8()? as usize;
                self.string(len)?;
            }
            b'T' => {
                let len = self.u32()? as usize;
                self.string(len)?;
            }
            0x8d => {
                let len = self.u64()?;
                self.string(len)?;
            }
            b'C' => {
                let len = self.u8()? as usize;
                self.opaque(len)?;
            }
            b'B' => {
                let len = self.u32()? as usize;
                self.opaque(len)?;
            }
            0x8e | 0x96 => {
                let len = self.u64()?;
                self.opaque(len)?;
            }
            b')' => self.push(Value::Tuple(Vec::new())),
            b't' => {
                let items = self.pop_mark()?;
                self.push(Value::Tuple(items));
            }
            count @ 0x85..=0x87 => {
                let count = usize::from(count - 0x84);
                let mut items = Vec::with_capacity(count);
                for _ in 0..count {
                    items.push(self.pop()?);
                }
                items.reverse();
                self.push(Value::Tuple(items));
            }
            b']' => self.push(Value::List(Vec::new())),
            b'l' => {
                let items = self.pop_mark()?;
                self.push(Value::List(items));
            }
            b'a' => {
                let item = self.pop()?;
                self.list()?.push(item);
            }
            b'e' => {
                let items = self.pop_mark()?;
                self.list()?.extend(items);
            }
            b'}' => self.push(Value::Dict(Vec::new())),
            b'd' => {
                let items = self.pop_mark()?;
                let pairs = pairs(&items)?;
                self.push(Value::Dict(pairs));
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.dict()?.push((key, value));
            }
            b'u' => {
                let items = self.pop_mark()?;
                let pairs = pairs(&items)?;
                self.dict()?.extend(pairs);
            }
            0x8f => self.push(Value::Opaque),
            0x90 => {
                self.pop_mark()?;
                self.top()?;
            }
            0x91 => {
                self.pop_mark()?;
                self.push(Value::Opaque);
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                match (self.value(module), self.value(name)) {
                    (&Value::Str(module), &Value::Str(name)) => self.global(module, name)?,
                    _ => return Err("the name of a global is not a string".to_string().into()),
                }
            }
            b'R' => self.reduce()?,
            b'b' => {
                // The state of a dictionary subclass (`_metadata` of a state_dict): nothing that is read here.
                self.pop()?;
                self.dict()?;
            }
            b'Q' => self.persistent()?,
            b'q' => {
                let index = self.u8()?;
                self.memoize(index.into())?;
            }
            b'r' => {
                let index = self.u32()?;
                self.memoize(index)?;
            }
            0x94 => self.memoize(self.memo.len() as u32)?,
            b'h' => {
                let index = self.u8()?;
                self.recall(index.into())?;
            }
            b'j' => {
                let index = self.u32()?;
                self.recall(index)?;
            }
            other => return Err(format!("instruction 0x{other:02x} does not occur in a torch checkpoint").into()),
        }
        Ok(None)
    }

    fn global(&mut self, module: &str, name: &str) -> Step<()> {
        match Global::allowed(module, name) {
            Some(global) => {
                self.push(Value::Global(global));
                Ok(())
            }
            None => Err(PickleError::Global(shown(&format!("{module}.{name}")))),
        }
    }

    /// "Calls" one of the allowed names: what its result would be is written down.
    fn reduce(&mut self) -> Step<()> {
        let (arguments, callable) = (self.pop()?, self.pop()?);
        let (&Value::Global(global), Value::Tuple(arguments)) = (self.value(callable), self.value(arguments)) else {
            return Err("something is called that is no function, or without a tuple of arguments".to_string().into());
        };
        // No more than any of them takes; a copy of a longer tuple at every call would cost its length every time.
        const MOST: usize = 16;
        let arguments = arguments.get(..arguments.len().min(MOST)).unwrap_or_default().to_vec();
        let argument = |i: usize| -> Step<Id> {
            arguments.get(i).copied().ok_or_else(|| format!("{global:?} lacks argument {i}").into())
        };
        let value = match global {
            Global::OrderedDict if arguments.is_empty() => Value::Dict(Vec::new()),
            Global::Set | Global::Device => Value::Opaque,
            // These two are what they are made of.
            Global::Size => {
                let sizes = argument(0)?;
                self.items(sizes)?;
                self.stack.push(sizes);
                return Ok(());
            }
            Global::RebuildParameter => {
                let tensor = argument(0)?;
                if !matches!(self.value(tensor), Value::Tensor(_)) {
                    return Err("a parameter is made of something that is no tensor".to_string().into());
                }
                self.stack.push(tensor);
                return Ok(());
            }
            Global::RebuildTensor => self.tensor(argument(0)?, argument(1)?, argument(2)?, argument(3)?, None)?,
            Global::RebuildTensorUntyped => {
                let &Value::Global(Global::Dtype(dtype)) = self.value(argument(6)?) else {
                    return Err("a tensor has no element type".to_string().into());
                };
                self.tensor(argument(0)?, argument(1)?, argument(2)?, argument(3)?, Some(dtype))?
            }
            other => return Err(format!("{other:?} is called with {} arguments", arguments.len()).into()),
        };
        self.push(value);
        Ok(())
    }

    fn tensor(
        &self,
        storage: Id,
        offset: Id,
        shape: Id,
        strides: Id,
        dtype: Option<&'static Dtype>,
    ) -> Step<Value<'a>> {
        let Value::Storage(storage) = self.value(storage) else {
            return Err("a tensor is a view of something that is no storage".to_string().into());
        };
        let dtype = dtype.or(storage.dtype).ok_or_else(|| "a tensor has no element type".to_string())?;
        let (shape, strides) = (self.items(shape)?, self.items(strides)?);
        if shape.len() != strides.len() || shape.len() > MAX_RANK {
            return Err(format!("a tensor has {} dimensions and {} strides", shape.len(), strides.len()).into());
        }
        let sizes = |ids: &[Id]| -> Step<Vec<usize>> { ids.iter().map(|&id| self.size(id)).collect() };
        let (offset, shape, strides) = (self.size(offset)?, sizes(shape)?, sizes(strides)?);
        Ok(Value::Tensor(Box::new(Tensor { storage: (**storage).clone(), dtype, offset, shape, strides })))
    }

    /// `("storage", class, key, location, elements)`: how torch.save refers to an entry of the archive.
    fn persistent(&mut self) -> Step<()> {
        let id = self.pop()?;
        let items = self.items(id)?;
        let [kind, class, key, _, len] = items else {
            return Err(format!("a reference of {} parts, storages have 5", items.len()).into());
        };
        let storage = match (self.value(*kind), self.value(*class), self.value(*key)) {
            (Value::Str("storage"), Value::Global(Global::TypedStorage(dtype)), &Value::Str(key)) => {
                Storage { key, dtype: Some(dtype), len: self.size(*len)? }
            }
            (Value::Str("storage"), Value::Global(Global::UntypedStorage), &Value::Str(key)) => {
                Storage { key, dtype: None, len: self.size(*len)? }
            }
            _ => return Err("a reference to something that is no storage".to_string().into()),
        };
        self.push(Value::Storage(Box::new(storage)));
        Ok(())
    }

    fn value(&self, id: Id) -> &Value<'a> {
        &self.values[id as usize]
    }

    fn items(&self, id: Id) -> Step<&[Id]> {
        match self.value(id) {
            Value::Tuple(items) | Value::List(items) => Ok(items),
            _ => Err("a tuple is expected".to_string().into()),
        }
    }

    fn size(&self, id: Id) -> Step<usize> {
        match self.value(id) {
            &Value::Int(value) if value >= 0 => Ok(value as usize),
            Value::Int(value) => Err(format!("a size is {value}").into()),
            _ => Err("a size is no whole number".to_string().into()),
        }
    }

    fn push(&mut self, value: Value<'a>) {
        // `MAX_STEPS` values at most.
        self.stack.push(self.values.len() as Id);
        self.values.push(value);
    }

    fn top(&self) -> Step<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.last() {
            Some(&top) if self.stack.len() > floor => Ok(top),
            _ => Err("the stack is empty".to_string().into()),
        }
    }

    fn pop(&mut self) -> Step<Id> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_mark(&mut self) -> Step<Vec<Id>> {
        let mark = self.marks.pop().ok_or_else(|| "no mark is open".to_string())?;
        Ok(self.stack.split_off(mark))
    }

    fn list(&mut self) -> Step<&mut Vec<Id>> {
        let top = self.top()?;
        match &mut self.values[top as usize] {
            Value::List(items) => Ok(items),
            _ => Err("an item is appended to something that is no list".to_string().into()),
        }
    }

    fn dict(&mut self) -> Step<&mut Vec<(Id, Id)>> {
        let top = self.top()?;
        match &mut self.values[top as usize] {
            Value::Dict(pairs) => Ok(pairs),
            _ => Err("an item is set in something that is no dictionary".to_string().into()),
        }
    }

    fn memoize(&mut self, index: u32) -> Step<()> {
        let top = self.top()?;
        self.memo.insert(index, top);
        Ok(())
    }

    fn recall(&mut self, index: u32) -> Step<()> {
        let id = *self.memo.get(&index).ok_or_else(|| format!("nothing is remembered as {index}"))?;
        self.stack.push(id);
        Ok(())
    }

    fn take(&mut self, len: usize) -> Step<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..len).ok_or_else(|| format!("{len} bytes are needed, {} are left", rest.len()))?;
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        // `take` gave exactly N bytes.
        Ok(*self.take(N)?.first_chunk().unwrap_or(&[0; N]))
    }

    fn u8(&mut self) -> Step<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Step<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Step<usize> {
        let value = u64::from_le_bytes(self.array()?);
        usize::try_from(value).map_err(|_| format!("{value} bytes").into())
    }

    /// A little-endian two's-complement number of any length.
    fn long(&mut self, len: usize) -> Step<()> {
        let bytes = self.take(len)?;
        let value = match bytes {
            [] => Value::Int(0),
            _ if len > 8 => Value::Opaque,
            _ => {
                let fill = if bytes[len - 1] & 0x80 != 0 { 0xff } else { 0 };
                let mut whole = [fill; 8];
                whole[..len].copy_from_slice(bytes);
                Value::Int(i64::from_le_bytes(whole))
            }
        };
        self.push(value);
        Ok(())
    }

    fn string(&mut self, len: usize) -> Step<()> {
        let bytes = self.take(len)?;
        // What is no text (Python 2 wrote bytes as strings) cannot be a name.
        self.push(std::str::from_utf8(bytes).map_or(Value::Opaque, Value::Str));
        Ok(())
    }

    fn opaque(&mut self, len: usize) -> Step<()> {
        self.take(len)?;
        self.push(Value::Opaque);
        Ok(())
    }

    fn line(&mut self) -> Step<&'a str> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|&b| b == b'\n').ok_or_else(|| "a line does not end".to_string())?;
        let line = std::str::from_utf8(self.take(len)?).map_err(|_| "a name is not UTF-8".to_string())?;
        self.take(1)?;
        Ok(line)
    }
}

fn pairs(items: &[Id]) -> Step<Vec<(Id, Id)>> {
    let (pairs, rest) = items.as_chunks::<2>();
    if !rest.is_empty() {
        return Err("a key without a value".to_string().into());
    }
    Ok(pairs.iter().map(|&[key, value]| (key, value)).collect())
}

/// Text of a file as it may be printed.
pub(super) fn shown(text: &str) -> String {
    const LONGEST: usize = 100;
    let mut short: String = text.chars().take(LONGEST).flat_map(char::escape_default).collect();
    if text.chars().nth(LONGEST).is_some() {
        short.push_str("...");
    }
    short
}

//! The crate's modules as they are written, and what their names mean.

use std::collections::BTreeMap;
use std::path::PathBuf;

use syn::punctuated::Punctuated;
use syn::{Attribute, Ident, Item, Meta, Token, UseTree};

use crate::documents::read;

/// From the crate on: `crate::error::Error`.
pub(super) type Path = Vec<String>;

/// All modules that are compiled without tests, the root first.
pub(super) struct Source {
    pub(super) modules: Vec<Module>,
}

pub(super) struct Module {
    pub(super) path: Path,
    pub(super) items: Vec<Item>,
    uses: BTreeMap<String, Path>,
}

/// A file, a text in it, and what stands in its place.
type Change<'c> = (&'c str, &'c str, &'c str);

impl Source {
    pub(super) fn read() -> Self {
        Self::with(None)
    }

    /// As it would be after this change.
    pub(super) fn read_with(file: &str, text: &str, replacement: &str) -> Self {
        Self::with(Some((file, text, replacement)))
    }

    fn with(change: Option<Change<'_>>) -> Self {
        let mut source = Self { modules: Vec::new() };
        source.read_file(vec!["crate".into()], "src/lib.rs".into(), "src".into(), change);
        source
    }

    fn read_file(&mut self, path: Path, file: PathBuf, children: PathBuf, change: Option<Change<'_>>) {
        let mut text = read(&file);
        if let Some((changed, before, after)) = change
            && file.ends_with(changed)
        {
            assert!(text.contains(before), "{changed} has no {before:?}");
            text = text.replacen(before, after, 1);
        }
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.add(path, parsed.items, children, change);
    }

    fn add(&mut self, path: Path, items: Vec<Item>, children: PathBuf, change: Option<Change<'_>>) {
        let items: Vec<Item> = items.into_iter().filter(|item| is_compiled(attributes(item))).collect();
        let mut uses = BTreeMap::new();
        for item in &items {
            match item {
                Item::Use(used) => collect(&used.tree, &mut Vec::new(), &mut uses),
                Item::Macro(called) if called.ident.is_none() => {
                    panic!("what a macro makes in {} cannot be listed", path.join("::"))
                }
                _ => {}
            }
        }
        let modules: Vec<_> = items
            .iter()
            .filter_map(|item| {
                if let Item::Mod(module) = item {
                    Some(module.clone())
                } else {
                    None
                }
            })
            .collect();
        self.modules.push(Module {
            path: path.clone(),
            items,
            uses,
        });
        for module in modules {
            let name = module.ident.to_string();
            let (mut path, inside) = (path.clone(), children.join(&name));
            path.push(name);
            match module.content {
                Some((_, items)) => self.add(path, items, inside, change),
                None => self.read_file(path, inside.with_extension("rs"), inside, change),
            }
        }
    }

    pub(super) fn module(&self, path: &[String]) -> Option<&Module> {
        self.modules.iter().find(|module| module.path == path)
    }

    /// What a path means in a module: from the crate on, or from another crate on. `None`: nothing that this
    /// module brought in, such as a generic parameter or what is in scope everywhere.
    pub(super) fn resolve(&self, module: &Module, path: &[String]) -> Option<Path> {
        let (first, rest) = path.split_first()?;
        let mut start = match first.as_str() {
            "crate" => vec!["crate".into()],
            "self" => module.path.clone(),
            "super" => module.path[..module.path.len() - 1].to_vec(),
            _ => match module.uses.get(first) {
                Some(used) => {
                    let names_itself = used.len() == 1 && used[0] == *first;
                    let found = if names_itself { None } else { self.resolve(module, used) };
                    found.unwrap_or_else(|| used.clone())
                }
                None if module.declares(first) => [&module.path[..], std::slice::from_ref(first)].concat(),
                None => return None,
            },
        };
        start.extend_from_slice(rest);
        Some(self.home(start))
    }

    /// Where the item was declared, if another module passes it on.
    fn home(&self, path: Path) -> Path {
        let (Some((name, module)), true) = (path.split_last(), path[0] == "crate") else {
            return path;
        };
        match self.module(module) {
            Some(module) if !module.declares(name) => {
                let found = module.uses.get(name).and_then(|used| self.resolve(module, used));
                found.unwrap_or(path)
            }
            _ => path,
        }
    }
}

impl Module {
    pub(super) fn item(&self, name: &str) -> Option<&Item> {
        self.items
            .iter()
            .find(|item| ident(item).is_some_and(|ident| ident == name))
    }

    fn declares(&self, name: &str) -> bool {
        self.item(name).is_some()
    }
}

fn collect(tree: &UseTree, before: &mut Path, uses: &mut BTreeMap<String, Path>) {
    let mut add = |name: &Ident, original: &Ident| {
        let mut path = before.clone();
        if original != "self" {
            path.push(original.to_string());
        }
        let name = if name == "self" {
            before.last().cloned().unwrap_or_default()
        } else {
            name.to_string()
        };
        uses.insert(name, path);
    };
    match tree {
        UseTree::Name(used) => add(&used.ident, &used.ident),
        UseTree::Rename(used) => add(&used.rename, &used.ident),
        UseTree::Path(used) => {
            before.push(used.ident.to_string());
            collect(&used.tree, before, uses);
            before.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| collect(tree, before, uses)),
        UseTree::Glob(_) => panic!("a glob after {} hides where names come from", before.join("::")),
    }
}

fn ident(item: &Item) -> Option<&Ident> {
    Some(match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Mod(item) => &item.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    })
}

pub(super) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether it is part of the crate as its users build it, with whatever features.
pub(super) fn is_compiled(attributes: &[Attribute]) -> bool {
    let mut conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.all(|cfg| cfg.parse_args::<Meta>().is_ok_and(|meta| may_hold(&meta, true)))
}

/// Whether the condition may turn out as `wanted`: features may be on or off.
fn may_hold(condition: &Meta, wanted: bool) -> bool {
    let parts = |list: &syn::MetaList| {
        let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
        parts.expect("a condition is made of conditions")
    };
    match condition {
        Meta::List(list) if list.path.is_ident("not") => parts(list).iter().all(|part| may_hold(part, !wanted)),
        Meta::List(list) if list.path.is_ident("all") == wanted => {
            parts(list).iter().all(|part| may_hold(part, wanted))
        }
        Meta::List(list) => parts(list).iter().any(|part| may_hold(part, wanted)),
        Meta::Path(path) if ["test", "fuzzing", "doctest"].iter().any(|name| path.is_ident(name)) => !wanted,
        _ => true,
    }
}

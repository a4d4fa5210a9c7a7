//! The public items of the crate as Rust without bodies, every name with where it comes from.

use std::collections::BTreeMap;
use std::fmt::Write;

use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, Fields, ImplItem, Item, ItemImpl, UseTree, Visibility, parse_quote};

use super::source::{Module, Path, Source, attributes, is_compiled};

/// The listing: the items that `lib.rs` makes public in its order, each with what is implemented for it.
pub(super) fn of(source: &Source) -> String {
    let exports = exports(source);
    let mut listing = String::from(HEAD);
    for export in &exports {
        let home = &export.home;
        let _ = write!(listing, "\n// {}\n\n{}", export.name, export.condition);
        let (module, name) = (source.module(&home[..home.len() - 1]), &home[home.len() - 1]);
        let Some((module, item)) = module.and_then(|module| Some((module, module.item(name)?))) else {
            let _ = writeln!(listing, "pub use {};", home.join("::"));
            continue;
        };
        let names = Names::new(source, module, &exports);
        listing += &names.item(item.clone());
        for module in &source.modules {
            let names = Names::new(source, module, &exports);
            for item in &module.items {
                if let Item::Impl(block) = item
                    && names.belongs(block) == Some(&export.name)
                    && let Some(block) = names.block(block.clone())
                {
                    listing += &print(block);
                }
            }
        }
    }
    listing
}

const HEAD: &str = "\
// The public API of leasehold: every public item with its signature, and where its types come from.
// The test `texts api` compares it with the source; LEASEHOLD_WRITE_API=1 writes it anew.
";

/// What `lib.rs` makes public.
struct Export {
    /// `leasehold::Lease`
    name: String,
    /// Where it was declared; or in another crate.
    home: Path,
    /// The feature that it needs, as an attribute; else nothing.
    condition: String,
}

fn exports(source: &Source) -> Vec<Export> {
    let root = &source.modules[0];
    let mut exports = Vec::new();
    for item in &root.items {
        let mut names = Vec::new();
        match item {
            Item::Use(used) if matches!(used.vis, Visibility::Public(_)) => self::names(&used.tree, &mut names),
            Item::Use(_) => {}
            Item::Mod(module) if matches!(module.vis, Visibility::Public(_)) => names.push(module.ident.to_string()),
            Item::Mod(_) | Item::Macro(_) => {}
            Item::Struct(item) if matches!(item.vis, Visibility::Inherited) => {}
            other => panic!("lib.rs passes on and declares nothing itself: {}", print(other.clone())),
        }
        let condition = condition(attributes(item));
        exports.extend(names.into_iter().map(|name| (name, condition.clone())));
    }
    let home = |name: &String| source.resolve(root, std::slice::from_ref(name));
    exports
        .into_iter()
        .map(|(name, condition)| Export {
            home: home(&name).unwrap_or_else(|| panic!("where {name} comes from cannot be told")),
            name: format!("leasehold::{name}"),
            condition,
        })
        .collect()
}

fn condition(attributes: &[Attribute]) -> String {
    let mut item: syn::ItemStruct = parse_quote!(
        struct It;
    );
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    item.attrs = conditions.cloned().collect();
    print(item).replace("struct It;\n", "")
}

fn names(tree: &UseTree, exports: &mut Vec<String>) {
    match tree {
        UseTree::Name(used) => exports.push(used.ident.to_string()),
        UseTree::Rename(used) => exports.push(used.rename.to_string()),
        UseTree::Path(used) => names(&used.tree, exports),
        UseTree::Group(group) => group.items.iter().for_each(|tree| names(tree, exports)),
        UseTree::Glob(_) => panic!("a glob hides what is public"),
    }
}

/// Writes the names of one module as others see them.
struct Names<'s> {
    source: &'s Source,
    module: &'s Module,
    public: BTreeMap<&'s [String], &'s String>,
}

impl<'s> Names<'s> {
    fn new(source: &'s Source, module: &'s Module, exports: &'s [Export]) -> Self {
        let public = exports.iter().map(|export| (&export.home[..], &export.name)).collect();
        Self { source, module, public }
    }

    /// The public path, or that in another crate. `None`: a name of no module.
    fn path(&self, path: &syn::Path) -> Option<Result<String, Path>> {
        let written: Path = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let found = self.source.resolve(self.module, &written)?;
        if let Some(name) = self.public.get(&found[..]) {
            return Some(Ok((*name).clone()));
        }
        Some(if found[0] == "crate" {
            Err(found)
        } else {
            Ok(found.join("::"))
        })
    }

    fn item(&self, item: Item) -> String {
        let mut item = item;
        let mut has_private_fields = false;
        match &mut item {
            Item::Struct(item) => {
                has_private_fields = drop_private(&mut item.fields);
            }
            Item::Fn(item) => item.block = parse_quote!({}),
            Item::Mod(item) => {
                let path: Path = [&self.module.path[..], &[item.ident.to_string()]].concat();
                let inside = &self.source.module(&path).expect("it was read").items;
                item.content = Some((Default::default(), inside.clone()));
                self.modules_alone(item);
            }
            Item::Enum(_) | Item::Const(_) | Item::Type(_) => {}
            other => panic!(
                "no public item of this kind was listed before: {}",
                print(other.clone())
            ),
        }
        let mut writer = Writer { names: self };
        writer.visit_item_mut(&mut item);
        let mark = if has_private_fields {
            "// has private fields\n"
        } else {
            ""
        };
        format!("{mark}{}", print(item))
    }

    /// A public module holds modules: the guide.
    fn modules_alone(&self, module: &mut syn::ItemMod) {
        let Some((_, items)) = &mut module.content else { return };
        items.retain(|item| !matches!(item, Item::Mod(item) if !matches!(item.vis, Visibility::Public(_))));
        for item in items {
            match item {
                Item::Mod(item) => self.modules_alone(item),
                other => panic!("a public module with more than modules in it: {}", print(other.clone())),
            }
        }
    }

    /// The public type under which the block is listed: its own, or the first among what it is about. `None` for
    /// what nobody outside can name.
    fn belongs(&self, block: &ItemImpl) -> Option<&'s String> {
        let mut heads = Heads::default();
        heads.visit_type(&block.self_ty);
        if let Some((_, of, _)) = &block.trait_ {
            heads.visit_path(of);
        }
        let mut first = None;
        for path in &heads.paths {
            match self.path(path) {
                Some(Err(_)) => return None,
                Some(Ok(name)) => first = first.or_else(|| self.public.values().find(|public| ***public == name)),
                None => {}
            }
        }
        first.copied()
    }

    /// The block without what is private in it, and without bodies. Of a trait's items the types and constants: its
    /// functions are as the trait has them.
    fn block(&self, mut block: ItemImpl) -> Option<ItemImpl> {
        let is_own = block.trait_.is_none();
        block.items.retain(|item| match item {
            ImplItem::Fn(item) => is_own && matches!(item.vis, Visibility::Public(_)) && is_compiled(&item.attrs),
            ImplItem::Const(item) => !is_own || matches!(item.vis, Visibility::Public(_)),
            ImplItem::Type(_) => true,
            _ => panic!("what a macro makes in an implementation cannot be listed"),
        });
        for item in &mut block.items {
            if let ImplItem::Fn(item) = item {
                item.block = parse_quote!({});
            }
        }
        if is_own && block.items.is_empty() {
            return None;
        }
        Writer { names: self }.visit_item_impl_mut(&mut block);
        Some(block)
    }
}

/// The paths that an implementation is about.
#[derive(Default)]
struct Heads<'b> {
    paths: Vec<&'b syn::Path>,
}

impl<'b> Visit<'b> for Heads<'b> {
    fn visit_path(&mut self, path: &'b syn::Path) {
        self.paths.push(path);
        visit::visit_path(self, path);
    }
}

/// Puts the public path in the place of each name, and takes out what is no part of a signature.
struct Writer<'n, 's> {
    names: &'n Names<'s>,
}

impl VisitMut for Writer<'_, '_> {
    fn visit_path_mut(&mut self, path: &mut syn::Path) {
        visit_mut::visit_path_mut(self, path);
        match self.names.path(path) {
            None => {}
            Some(Err(private)) => panic!("{} is private and stands in the public API", private.join("::")),
            Some(Ok(name)) => {
                let mut full: syn::Path = syn::parse_str(&name).expect("it is a path");
                let arguments = path.segments.pop().map(|last| last.into_value().arguments);
                if let (Some(last), Some(arguments)) = (full.segments.last_mut(), arguments) {
                    last.arguments = arguments;
                }
                *path = full;
            }
        }
    }

    fn visit_vis_restricted_mut(&mut self, _: &mut syn::VisRestricted) {}

    fn visit_receiver_mut(&mut self, receiver: &mut syn::Receiver) {
        visit_mut::visit_receiver_mut(self, receiver);
        // `mut self` is the body's own affair.
        if receiver.reference.is_none() {
            receiver.mutability = None;
        }
    }

    fn visit_attributes_mut(&mut self, attributes: &mut Vec<Attribute>) {
        // Doc comments, messages and sources of errors, lints.
        attributes.retain(|attribute| {
            let says_nothing = ["doc", "error", "source", "allow", "expect", "inline"];
            !says_nothing.iter().any(|name| attribute.path().is_ident(name))
        });
    }
}

/// Whether there were any.
fn drop_private(fields: &mut Fields) -> bool {
    let before = fields.len();
    let is_public = |field: &syn::Field| matches!(field.vis, Visibility::Public(_));
    match fields {
        Fields::Named(fields) => fields.named = fields.named.clone().into_iter().filter(is_public).collect(),
        Fields::Unnamed(fields) => fields.unnamed = fields.unnamed.clone().into_iter().filter(is_public).collect(),
        Fields::Unit => {}
    }
    fields.len() < before
}

fn print(item: impl Into<Item>) -> String {
    prettyplease::unparse(&syn::File {
        shebang: None,
        attrs: Vec::new(),
        items: vec![item.into()],
    })
}

// The fields of an agent's form: what it asks its user for, as inputs, and what is written in them as values.
import { exactly, h, shown } from "./lib.js";

const NUMBERS = ["number", "integer"];

/** Returns `{element, values()}`: the values, by the names of their fields, of the inputs that have one. */
export function formOf(fields) {
  const inputs = fields.map((field) => ({ field, ...inputOf(field) }));
  return {
    element: h("div", { class: "form" }, inputs.map((each) => each.element)),
    values: () => Object.fromEntries(inputs.map(({ field, value }) => [field.name, value()]).filter(([, value]) => value !== undefined)),
  };
}

function inputOf(field) {
  const { type, title, description, required, options = [], default: given } = field;
  const words = h("span", {}, exactly(title), required ? " (required)" : "");
  const more = description ? h("span", { class: "soft" }, exactly(description)) : null;
  if (type === "choices") {
    const boxes = options.map((each) => h("input", { type: "checkbox", checked: given?.includes(each.value) }));
    const labels = options.map((each, at) => h("label", { class: "inline" }, boxes[at], exactly(each.title)));
    return {
      element: h("fieldset", {}, h("legend", {}, words), more, labels),
      value: () => {
        const chosen = options.filter((_, at) => boxes[at].checked).map((each) => each.value);
        return chosen.length || required ? chosen : undefined;
      },
    };
  }
  if (type === "boolean") {
    const box = h("input", { type: "checkbox", checked: given === true });
    return { element: h("label", { class: "inline" }, box, words, more), value: () => box.checked };
  }
  if (type === "choice") {
    const none = h("option", { value: "-1" }, "–"); // nothing is chosen by mistake
    const select = h("select", {}, none, options.map((each, at) => h("option", { value: String(at), selected: each.value === given }, shown(each.title))));
    return { element: h("label", {}, words, more, select), value: () => options[select.value]?.value };
  }
  const number = NUMBERS.includes(type);
  const input = h("input", { type: number ? "number" : "text", step: type === "integer" ? "1" : "any", maxlength: number ? null : "16384",
    value: given ?? "", autocomplete: "off" });
  const value = () => (input.value === "" ? undefined : number ? Number(input.value) : input.value);
  return { element: h("label", {}, words, more, input), value };
}

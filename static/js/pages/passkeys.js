// Say on the page why a passkey could not be used; allauth's script only writes it to the console.
document.addEventListener("allauth.error", (event) => {
  const place = document.querySelector("[data-passkey-problem]");
  if (!place) return;
  event.preventDefault();
  const { exception } = /** @type {CustomEvent} */ (event).detail;
  let text = place.dataset.passkeyProblem;
  if (!window.PublicKeyCredential) text = place.dataset.passkeyMissing;
  if (!window.isSecureContext || exception?.name === "SecurityError") text = place.dataset.passkeyInsecure;
  place.textContent = text;
  place.hidden = false;
});

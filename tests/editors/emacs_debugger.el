;;; -*- lexical-binding: t -*-
;; Debugs a graph through dape as a user would, and writes down where it stands.
(require 'json)

(defvar out nil)
(defvar stops nil)
(defvar seen nil "One element for each stop whose stack is known.")
(defvar halted nil "Whether it stopped and the stack is not known yet.")

(defun note (key value) (push (cons key value) out))

(defun wait-for (what condition)
  (with-timeout (150 (error "No %s" what))
    (while (not (funcall condition))
      (accept-process-output nil 0.05))))

(defun conn () (dape--live-connection 'stopped t))

(defun frame () (and (conn) (dape--current-stack-frame (conn))))

(defun stopped (what act)
  "Do ACT, wait until the session stands again, and note the topmost frame."
  (let ((before (length seen)))
    (funcall act)
    (wait-for (concat "stop after " what)
              (lambda () (and (> (length seen) before) (frame)
                              (plist-get (frame) :line))))
    (push (format "%s: %s %d" what (plist-get (frame) :name) (plist-get (frame) :line)) stops)))

(add-hook 'dape-stopped-hook (lambda () (setq halted t)))
(add-hook 'dape-update-ui-hook
          (lambda ()
            (when (and halted (plist-get (frame) :line))
              (setq halted nil)
              (push t seen))))

(defun ask (command arguments)
  (let (done result)
    (dape--with-request-bind (body problem) (dape-request (conn) command arguments)
      (when problem (error "%s: %s" command problem))
      (setq done t result body))
    (wait-for command (lambda () done))
    result))

(condition-case problem
    (progn
      (setq dape-buffer-window-arrangement nil)
      (find-file (car command-line-args-left))
      (stopped "entry" (lambda () (dape (dape--config-eval 'opstep nil))))
      (stopped "step over" (lambda () (call-interactively #'dape-next)))
      (stopped "step over" (lambda () (call-interactively #'dape-next)))
      (stopped "step back" (lambda () (call-interactively #'opstep-step-back)))
      (stopped "step over" (lambda () (call-interactively #'dape-next)))
      (stopped "step into" (lambda () (call-interactively #'dape-step-in)))
      (stopped "step out" (lambda () (call-interactively #'dape-step-out)))
      (stopped "reverse continue" (lambda () (call-interactively #'opstep-reverse-continue)))
      (set-buffer (get-file-buffer (car command-line-args-left)))
      (goto-char (point-min))
      (forward-line 11)
      (dape-breakpoint-toggle)
      (wait-for "breakpoint"
                (lambda () (seq-some (lambda (b) (plist-get (dape--breakpoint-verified b) (conn)))
                                     dape--breakpoints)))
      (stopped "continue" (lambda () (call-interactively #'dape-continue)))
      (let* ((id (plist-get (frame) :id)) variables)
        (seq-doseq (scope (plist-get (ask :scopes (list :frameId id)) :scopes))
          (seq-doseq (v (plist-get (ask :variables (list :variablesReference
                                                         (plist-get scope :variablesReference)))
                                   :variables))
            (push (cons (plist-get v :name) (plist-get v :value)) variables)))
        (note 'variables variables)
        (note 'evaluated (plist-get (ask :evaluate (list :expression "max(p)" :frameId id :context "watch"))
                                    :result)))
      (dape-breakpoint-remove-all)
      (call-interactively #'dape-continue)
      (wait-for "end" (lambda () (not (dape--live-connection 'parent t)))))
  (error (note 'error (format "%S" problem))))
(note 'stops (vconcat (reverse stops)))
(with-temp-file (getenv "OUT")
  (insert (json-encode (reverse out))))
(kill-emacs 0)
